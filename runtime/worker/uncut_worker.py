"""`PlainWorker`: a whole model on one machine as plain torch runs it - the baseline, and what cannot be cut.

Its parameters lie in one flat buffer like those of a cut model, so that rules and parameter servers treat both alike.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...models.task import Data
from ...partition.ir.autocast import autocast as autocast_in
from ...errors import BadInput
from ...partition.ir.pytree import first_tensor
from .flat_gradient import Gradient, Table
from .dropout_masks import draw_seed


class PlainWorker:
    """Trains `model` with plain autograd; random numbers are those of a cut model with the same seed.

    values, gradients: flat, in the order of `parameters`; the module's parameters are views of them. autocast: the
    dtype in which torch.autocast computes model and loss, if it does. tables: parameters of which a step touches some
    rows only, as `tables_of` names them; `gradient` knows which.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        *,
        seed: int = 0,
        autocast: str = "",
        tables: Sequence[Table] = (),
    ) -> None:
        self.model, self.loss, self.seed, self.autocast = model, loss, seed, autocast
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        trained = list(self.parameters.values())
        dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in trained})
        if len(dtypes) > 1:
            raise BadInput(
                "E342", f"the parameters have several dtypes: {', '.join(dtypes)}", fix="make them one: model.float()"
            )
        dtype = trained[0].dtype if trained else torch.float32
        values = torch.cat([torch.empty(0, dtype=dtype), *(p.detach().reshape(-1) for p in trained)])
        self.move(values)
        self.gradients = torch.zeros_like(values)
        for parameter, gradient in zip(trained, self._views(self.gradients), strict=True):
            parameter.grad = gradient
        self.gradient = Gradient(self.gradients, tables)
        begins = [view.storage_offset() for view in self._views(values)]
        for number, table in enumerate(tables):
            self.gradient.watch(trained[bisect_right(begins, table.start) - 1], number)

    def move(self, values: Tensor) -> None:
        """The parameters are views of another flat buffer from now on, which holds what it is to hold already."""
        self.values = values
        for parameter, view in zip(self.parameters.values(), self._views(values), strict=True):
            parameter.data = view

    def _views(self, flat: Tensor) -> list[Tensor]:
        shapes = [parameter.shape for parameter in self.parameters.values()]
        pieces = torch.split(flat, [shape.numel() for shape in shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]

    def step(self, batch: Data, step: int) -> float:
        """Add the gradient of the batch's mean loss to `gradients`; the loss."""
        self.model.train()
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would seed other devices too, noting where it was called, which takes 0.1 ms and more.
            torch.default_generator.manual_seed(draw_seed(self.seed, step, 0))
            with autocast_in(self.autocast):
                loss = self.loss(self.model(*batch.inputs), *batch.targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def clip(self, most: float, step: int = 0) -> float:
        """Scale the gradients so that their norm is at most `most`, as a cut model does; what it was."""
        norm = self.gradient.norm()
        self.gradient.scale(min(1.0, most / (norm + 1e-6)))
        return norm

    @torch.no_grad()
    def predict(self, batch: Data) -> Tensor:
        """The output for a batch, in evaluation mode: the first tensor of what the model gives."""
        self.model.eval()
        with autocast_in(self.autocast):
            output = first_tensor(self.model(*batch.inputs))
        assert output is not None  # as the rehearsal has seen
        return output


def tables_of(loss: Tensor, parameters: Mapping[str, Tensor]) -> list[Table]:
    """The parameters, by their places one after another, that a loss reads by rows of sparse gradients alone.

    loss: computed from them, its autograd graph still there. parameters: in the order of the flat buffer.
    """
    readers = _readers(loss)
    tables, at = list[Table](), 0
    for parameter in parameters.values():
        stop = at + parameter.numel()
        sparse = readers.get(id(parameter), [False])
        if all(sparse) and parameter.dim() == 2 and parameter.numel():
            tables.append(Table(at, stop, parameter.shape[1]))
        at = stop
    return tables


def _readers(loss: Tensor) -> dict[int, list[bool]]:
    """By id of each leaf: whether the gradient of each of its readers is sparse."""
    found: dict[int, list[bool]] = {}
    seen, left = set[Any](), [loss.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                found.setdefault(id(leaf), []).append(bool(getattr(node, "_saved_sparse", False)))
            left.append(following)
    return found
