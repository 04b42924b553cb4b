"""Compares a step of the traced graph with one of plain torch, on random values: loss, all gradients and buffers.

What differs was traced wrongly. Whatever makes the comparison uncertain - a model that is too large, values that do not
suit it, a step that is not the same twice or that rounding changes - is a note and no error.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from ...models.task import Data
from ...partition.capture.tracing_error import Untraceable
from ...partition.ir.garbage import leave_garbage
from ...partition.ir.graph import Graph
from ...partition.trace.source_location import first_line
from ..units import format_bytes, format_count
from .meta_model import MAX_WHOLE_BYTES
from .step_results import GRADIENT_OF, StepResult, measure, run_graph, run_plain

MAX_VALUE_BYTES = 1 << 30  # of all that a step computes
MAX_FLOPS = 1e10  # of a forward pass
_TOLERANCE, _COARSE_TOLERANCE = 1e-3, 0.1  # parts of the largest entry; coarse where numbers have 16 bits
_MARGIN = 30  # by which a difference must be larger than what rounding makes of the step


@leave_garbage()
def check_trace(
    build: Callable[[], nn.Module],
    loss: Callable[..., Tensor],
    example: Data,
    graph: Graph,
    constants: Mapping[str, Tensor],
    *,
    autocast: str = "",
    tell: Callable[[str], None],
) -> None:
    """Raise Untraceable where the training graph of a model computes something else than plain torch.

    build: makes the model, always with the same values. example: the batch that was traced. tell: gets a note where
    they are not compared.
    """
    reason = _find_excess(graph)
    if not reason:
        with _one_thread():
            reason = _compare(build, loss, example, graph, constants, autocast)
    if reason:
        tell(f"the plan's step was not compared with plain torch: {reason}")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute without OpenMP: each of the two steps has a thread, and their teams would get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _find_excess(graph: Graph) -> str:
    """Return why a graph is too large to be computed here; "" if it is not."""
    sizes = {name: torch.Size(t.shape).numel() * t.element_bytes for name, t in graph.tensors.items()}
    held = sum(sizes[t.name] for t in graph.states)
    computed, flops = sum(sizes.values()) - held, sum(op.flops for op in graph.ops)
    if held > MAX_WHOLE_BYTES:
        return f"the model has {format_bytes(held)}, more than {format_bytes(MAX_WHOLE_BYTES)}"
    if computed > MAX_VALUE_BYTES:
        return f"it computes {format_bytes(computed)}, more than {format_bytes(MAX_VALUE_BYTES)}"
    if flops > MAX_FLOPS:
        return f"it takes {format_count(flops)}FLOP, more than {format_count(MAX_FLOPS)}FLOP"
    return ""


def _compare(
    build: Callable[[], nn.Module],
    loss: Callable[..., Tensor],
    example: Data,
    graph: Graph,
    constants: Mapping[str, Tensor],
    autocast: str,
) -> str:
    """Compare the two steps; return why they cannot be compared, "" if they are alike."""
    reason = ""
    for batch in (_make_up(example), example):

        def compute(noise: int, batch: Data = batch) -> StepResult:
            return run_plain(_vary(build(), noise), loss, batch, autocast=autocast)

        try:
            model = _vary(build())
            traced = run_graph(graph, constants, model, loss, batch)
            plain = run_plain(model, loss, batch, autocast=autocast)
            if not plain.is_finite:
                reason = "not all of its values are finite"
                continue
            differences = _find_differences(plain, traced, autocast)
            again = [measure(compute(noise), plain) for noise in (range(3) if differences else ())]
        except Exception as error:  # whatever the user's code raises on values that do not suit it
            reason = f"{type(error).__name__}: {first_line(error)}"
            continue
        for name, difference in differences.items():
            if not difference <= _MARGIN * max(run[name] for run in again):
                raise _untraceable(name, difference)
        return "plain torch differs from itself as much, by rounding or chance" if differences else ""
    return reason


def _make_up(example: Data) -> Data:
    """Return the batch with random numbers in place of floating-point tensors of which all entries are alike."""
    draw = torch.Generator().manual_seed(0)

    def fill(tensor: Tensor, sample: Callable[..., Tensor]) -> Tensor:
        return sample(tensor.shape, generator=draw, dtype=tensor.dtype) if _is_uniform(tensor) else tensor

    return Data(
        tuple(fill(tensor, torch.randn) for tensor in example.inputs),
        tuple(fill(tensor, torch.rand) for tensor in example.targets),
        example.names,
    )


def _vary(model: nn.Module, noise: int = 0) -> nn.Module:
    """Change parameters whose entries are all alike, behind which gradients may be zero, and return the model.

    noise: if not 0, seeds changes of all parameters in their last digits.
    """
    draw, rounding = torch.Generator().manual_seed(0), torch.Generator().manual_seed(noise)
    with torch.no_grad():
        for parameter in model.parameters():
            if _is_uniform(parameter):
                parameter.add_(0.1 * torch.rand(parameter.shape, generator=draw, dtype=parameter.dtype))
            if noise and parameter.is_floating_point():
                digits = torch.randn(parameter.shape, generator=rounding, dtype=parameter.dtype)
                parameter.mul_(1 + torch.finfo(parameter.dtype).eps * digits)
    return model


def _is_uniform(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return False
    flat = tensor.detach().reshape(-1)
    return all(bool((some == flat[0]).all()) for some in (flat[:64], flat))  # most are not, as a few entries tell


def _find_differences(plain: StepResult, traced: StepResult, autocast: str) -> dict[str, float]:
    """Return the tensors that differ by more than rounding may do to a simple step."""
    coarse = autocast or any(value.element_size() < 4 for value in plain.gradients.values())
    tolerance = _COARSE_TOLERANCE if coarse else _TOLERANCE
    return {name: part for name, part in measure(traced, plain).items() if not part <= tolerance}


def _untraceable(name: str, difference: float) -> Untraceable:
    path = name.removeprefix(GRADIENT_OF).split(".")[:-1] if name.startswith(GRADIENT_OF) else []
    return Untraceable(
        f"the model is not traced rightly: {name} differs from that of plain torch by {difference:.2g} of its size",
        rewrite="write it with operators that torch.export follows; or --trust-trace, if this makes no difference",
        modules=[".".join(path[:depth]) for depth in range(len(path), 0, -1)],
    )
