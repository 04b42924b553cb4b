"""`UncutWorker`: runs a whole model on one machine as plain torch does: the baseline, and models that cannot be cut.

Its parameters lie in one flat buffer like those of a cut model, so that parameter servers treat both alike.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...models.task import Data
from ...partition.ir.autocast import autocast_context as autocast_in
from .dropout_masks import mask_seed
from .flat_gradient import FlatGradient, SparseTable
from .flat_layout import RoundedCopies, find_flat_dtype, sort_for_flat_buffer


class FlatModel:
    """A whole model whose trained parameters are views of one flat buffer, or copies where they have fewer bits.

    values, gradients: flat, in the order of `parameters`. trained: their names, by default those that need gradients.
    copies: to be refreshed before the model computes, and collected after backward.
    """

    def __init__(self, model: nn.Module, trained: Collection[str] | None = None) -> None:
        self.model = model
        wanted = trained if trained is not None else [n for n, p in model.named_parameters() if p.requires_grad]
        named = [(name, p) for name, p in model.named_parameters() if name in wanted]
        self.parameters = dict(sort_for_flat_buffer(named, lambda item: item[1].numel()))
        parameters = list(self.parameters.values())
        dtype = find_flat_dtype(p.dtype for p in parameters)
        values = torch.cat([torch.empty(0, dtype=dtype), *(p.detach().reshape(-1).to(dtype) for p in parameters)])
        self.move(values)
        self.gradients = torch.zeros_like(values)
        places = zip(parameters, self.views(values), strict=True)
        spans = [(p, slice(view.storage_offset(), view.storage_offset() + view.numel())) for p, view in places]
        self.copies = RoundedCopies((p, span) for p, span in spans if p.dtype != dtype)

    def move(self, values: Tensor) -> None:
        """Make the parameters views of another flat buffer, which holds their values already."""
        self.values = values
        for parameter, view in zip(self.parameters.values(), self.views(values), strict=True):
            if parameter.dtype == values.dtype:
                parameter.data = view

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the parts of a flat tensor that belong to the parameters, in their shapes."""
        shapes = [parameter.shape for parameter in self.parameters.values()]
        pieces = torch.split(flat, [shape.numel() for shape in shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


class UncutWorker(FlatModel):
    """Trains `model` with plain autograd; random numbers are those of a cut model with the same seed.

    autocast: the dtype in which
    torch.autocast computes model and loss, if it does. tables: parameters of which a step touches some rows only, as
    `find_sparse_tables` names them; `gradient` knows which.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        *,
        seed: int = 0,
        autocast: str = "",
        tables: Sequence[SparseTable] = (),
    ) -> None:
        super().__init__(model)
        self._is_training: bool | None = None  # the mode of the whole model, where it was set here
        self.loss, self.seed, self.autocast = loss, seed, autocast
        trained = list(self.parameters.values())
        for parameter, gradient in zip(trained, self.views(self.gradients), strict=True):
            parameter.grad = gradient if parameter.dtype == gradient.dtype else torch.zeros_like(parameter)
        self.gradient = FlatGradient(self.gradients, tables)
        begins = [view.storage_offset() for view in self.views(self.values)]
        sizes = zip(trained, begins, strict=True)
        dense = [(p, slice(at, at + p.numel())) for p, at in sizes if p.dtype == self.values.dtype]
        self.gradient.let_apart((p, s) for p, s in dense if all(s.start != table.start for table in tables))
        for number, table in enumerate(tables):
            self.gradient.watch_backward(trained[bisect_right(begins, table.start) - 1], number)

    def step(self, batch: Data, step: int) -> float:
        """Add the gradient of the batch's mean loss to `gradients`. Returns the loss."""
        self.copies.refresh(self.values)
        self._set_mode(training=True)
        with _keep_generator() as generator:
            # torch.manual_seed would seed other devices too, noting where it was called, which takes 0.1 ms and more.
            generator.manual_seed(mask_seed(self.seed, step, 0))
            with autocast_in(self.autocast):
                loss = self.loss(batch.call(self.model), *batch.targets)
            loss.backward()  # type: ignore[no-untyped-call]
        self.copies.collect(self.gradients)
        return float(loss.detach())

    def clip(self, max_norm: float, step: int = 0) -> float:
        """Scale the gradients so that their norm is at most `max_norm`, as `Worker.clip`. Returns the norm before."""
        norm = self.gradient.norm()
        self.gradient.scale(min(1.0, max_norm / (norm + 1e-6)))
        return norm

    @torch.no_grad()
    def predict(self, batch: Data) -> Any:
        """Compute the output for a batch in evaluation mode."""
        self.copies.refresh(self.values)
        self._set_mode(training=False)
        with autocast_in(self.autocast):
            return batch.call(self.model)

    def _set_mode(self, *, training: bool) -> None:
        """Set the mode of the whole model where it is another: to go through all modules in each step takes time."""
        if self._is_training is not training or self.model.training is not training:
            self.model.train(training)
            self._is_training = training


@contextmanager
def _keep_generator() -> Iterator[torch.Generator]:
    """Leave torch's random numbers as they were, as `torch.random.fork_rng`, which looks for other devices, too."""
    generator = torch.default_generator
    before = generator.get_state()
    try:
        yield generator
    finally:
        generator.set_state(before)


def find_sparse_tables(loss: Tensor, parameters: Mapping[str, Tensor]) -> list[SparseTable]:
    """Find the parameters that a loss reads only through operators with sparse gradients, as ranges of the flat buffer.

    loss: computed from them, its autograd graph still there. parameters: the trained ones, in the model's order.
    """
    readers = _readers(loss)
    dtype = find_flat_dtype(p.dtype for p in parameters.values())
    tables, at = list[SparseTable](), 0
    for parameter in sort_for_flat_buffer(parameters.values(), Tensor.numel):
        stop = at + parameter.numel()
        sparse = readers.get(id(parameter), [False])
        if all(sparse) and parameter.dim() == 2 and parameter.numel() and parameter.dtype == dtype:
            tables.append(SparseTable(at, stop, parameter.shape[1]))
        at = stop
    return tables


def _readers(loss: Tensor) -> dict[int, list[bool]]:
    """By id of each leaf: whether the gradient of each of its readers is sparse."""
    sparse: dict[int, list[bool]] = {}
    seen, pending = set[Any](), [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                sparse.setdefault(id(leaf), []).append(bool(getattr(node, "_saved_sparse", False)))
            pending.append(following)
    return sparse
