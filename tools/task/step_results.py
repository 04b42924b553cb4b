"""`StepResult`: what a training step computes, in plain torch or by a graph on one machine, and how results differ."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...models.task import Data
from ...partition.capture.exported_draft import collect_state
from ...partition.dataflow.cut import one_machine_cut
from ...partition.dataflow.lowering import lower_cut
from ...partition.ir.autocast import autocast_context
from ...partition.ir.graph import Graph
from ...runtime.replica.replica import Replica
from ...runtime.worker.dropout_masks import mask_seed
from ...runtime.worker.program import programs

GRADIENT_OF = "the gradient of "
SEED = STEP = 0  # from which both draw their random numbers
_FLOOR = 1e-3  # a gradient that is zero but for rounding is measured by this part of the largest


@dataclass(frozen=True)
class StepResult:
    """What a step has computed, by name. buffers: after the forward pass."""

    loss: Tensor
    gradients: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]

    def list_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield everything under a name that stands in a sentence."""
        yield "its loss", self.loss
        yield from ((GRADIENT_OF + name, value) for name, value in self.gradients.items())
        yield from ((f"the buffer {name}", value) for name, value in self.buffers.items())

    @property
    def is_finite(self) -> bool:
        """Whether all values are numbers."""
        return all(math.isfinite(value.sum(dtype=torch.float64)) for _, value in self.list_tensors())


def run_plain(model: nn.Module, loss: Callable[..., Tensor], batch: Data, *, autocast: str) -> StepResult:
    """Compute a step of `model` in plain torch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mask_seed(SEED, STEP, 0))
        with autocast_context(autocast):
            value = loss(batch.call(model.train()), *batch.targets)
        # Code under an activation checkpoint runs again in backward, and changes buffers another time.
        buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        value.backward()  # type: ignore[no-untyped-call]
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return StepResult(value.detach(), {name: _gradient(p) for name, p in trained.items()}, buffers)


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter, requires_grad=False)
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad


def run_graph(
    graph: Graph, constants: Mapping[str, Tensor], model: nn.Module, loss: Callable[..., Tensor], batch: Data
) -> StepResult:
    """Compute a step of a graph on one machine, with the values of `model`, which is not changed."""
    values = collect_state(model, loss, constants)
    with Replica(
        programs(lower_cut(graph, one_machine_cut(graph)), training=True),
        seed=SEED,
        model=model,
        loss=loss,
        input_names=batch.names,
    ) as replica:
        replica.load(values.__getitem__)
        value = torch.tensor(replica.step(batch, STEP), dtype=torch.float64)
        pieces = replica.workers[0].states.pieces.items()
        buffers = {name: piece for (name, _), piece in pieces if graph.tensors[name].kind == "buffer"}
        shaped = {name: piece.reshape(graph.tensors[name].shape) for name, piece in buffers.items()}
        frozen = {name: torch.zeros_like(values[name]) for name in graph.frozen}  # plain torch must give them nothing
        return StepResult(value, frozen | dict(replica.gradients()), shaped)


def measure(found: StepResult, expected: StepResult) -> dict[str, float]:
    """Return by how much what both have differs, as a part of the largest entry of each tensor."""
    theirs = dict(found.list_tensors())
    both = {name: value for name, value in expected.list_tensors() if name in theirs}
    differences = dict.fromkeys(both, 0.0)
    unequal = {name: value for name, value in both.items() if not torch.equal(theirs[name].to(value.dtype), value)}
    largest = max((_largest(value) for value in expected.gradients.values()), default=0.0) if unequal else 0.0
    for name, value in unequal.items():
        scale = max(_largest(value), _FLOOR * largest)
        differences[name] = _largest(theirs[name].double() - value.double()) / (scale or 1.0)
    return differences


def _largest(value: Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0
