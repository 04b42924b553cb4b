"""Models of operators without a written rule: batches of matrices, sizes as plain arguments, one of several results."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import Case, real

from cutset.models.task import Data


class Matrices(nn.Module):
    """Solves and decomposes a matrix for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 4)
        self.right = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = x[:, :, None] * x[:, None, :] + self.weight @ self.weight.T + 2 * torch.eye(4, dtype=x.dtype)
        solved = torch.linalg.solve(a, self.right(x)[:, :, None])[:, :, 0]
        logarithm = torch.linalg.slogdet(a).logabsdet
        return solved + logarithm[:, None] + torch.linalg.matrix_exp(-a).sum(-1) + torch.linalg.eigvalsh(a)


class Transformer(nn.Module):
    """Moves an image by a grid that each sample has for itself (Jaderberg et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Linear(36, 6)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.where(x.flatten(1)).view(-1, 2, 3)
        return F.grid_sample(x, F.affine_grid(theta, [x.shape[0], 1, 6, 6], align_corners=False), align_corners=False)


FOUND_MODELS = {
    "batches of matrices": Case(Matrices, lambda: Data((real(6, 4),), (real(6, 4),)), F.mse_loss),
    "spatial transformer": Case(Transformer, lambda: Data((real(4, 1, 6, 6),), (real(4, 1, 6, 6),)), F.mse_loss),
}
