"""`PlainWorker`: a whole model on one machine as plain torch runs it - the baseline, and what cannot be cut.

Its parameters lie in one flat buffer like those of a cut model, so that rules and parameter servers treat both alike.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..models.task import Data
from ..partition.autocast import autocast as autocast_in
from ..partition.errors import BadInput
from ..partition.structure import first_tensor
from .noise import draw_seed


class PlainWorker:
    """Trains `model` with plain autograd; random numbers are those of a cut model with the same seed.

    values, gradients: flat, in the order of `parameters`; the module's parameters are views of them. autocast: the
    dtype in which torch.autocast computes model and loss, if it does.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], *, seed: int = 0, autocast: str = "") -> None:
        self.model, self.loss, self.seed, self.autocast = model, loss, seed, autocast
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        trained = list(self.parameters.values())
        dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in trained})
        if len(dtypes) > 1:
            raise BadInput(
                "E342", f"the parameters have several dtypes: {', '.join(dtypes)}", fix="make them one: model.float()"
            )
        dtype = trained[0].dtype if trained else torch.float32
        self.values = torch.cat([torch.empty(0, dtype=dtype), *(p.detach().reshape(-1) for p in trained)])
        self.gradients = torch.zeros_like(self.values)
        offset = 0
        for parameter in trained:
            span = slice(offset, offset + parameter.numel())
            parameter.data = self.values[span].view(parameter.shape)
            parameter.grad = self.gradients[span].view(parameter.shape)
            offset += parameter.numel()

    def step(self, batch: Data, step: int) -> float:
        """Add the gradient of the batch's mean loss to `gradients`; the loss."""
        self.model.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw_seed(self.seed, step, 0))
            with autocast_in(self.autocast):
                loss = self.loss(self.model(*batch.inputs), *batch.targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def clip(self, most: float, step: int = 0) -> float:
        """Scale the gradients so that their norm is at most `most`, as a cut model does; what it was."""
        norm = float(torch.linalg.vector_norm(self.gradients, dtype=torch.float64))
        self.gradients.mul_(min(1.0, most / (norm + 1e-6)))
        return norm

    @torch.no_grad()
    def predict(self, batch: Data) -> Tensor:
        """The output for a batch, in evaluation mode: the first tensor of what the model gives."""
        self.model.eval()
        with autocast_in(self.autocast):
            output = first_tensor(self.model(*batch.inputs))
        assert output is not None  # as the rehearsal has seen
        return output
