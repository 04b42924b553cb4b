"""Whether an operator on parts of its operands gives the parts of its whole result, and of its gradients.

The parts are intervals, and some indices here and there, since a dimension of several axes is also cut along an inner
one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from .dependence import Sample
from .operator_call import OperatorCall, Tensors
from .rounding import are_close
from .rule_data import FoundLabel

ROUNDS = 2  # parts that are tried of each sample


@dataclass(frozen=True)
class _Part:
    """The indices of each label that one run gets."""

    indices: tuple[Tensor, ...]


def holds(call: OperatorCall, labels: Sequence[FoundLabel], samples: Sequence[Sample], seed: int = 0) -> bool:
    """Whether parts along these labels, jointly, are those of the whole for all samples."""
    generator = torch.Generator().manual_seed(seed)
    return all(
        _holds_once(call, labels, sample, generator, scattered=round_ == 0)
        for sample, round_ in product(samples, range(ROUNDS))
    )


def _holds_once(
    call: OperatorCall, labels: Sequence[FoundLabel], sample: Sample, generator: torch.Generator, *, scattered: bool
) -> bool:
    choices = [_choose_parts(call, label, generator, scattered=scattered) for label in labels]
    parts = [_Part(indices) for indices in product(*choices)]
    weight = torch.randn(call.output, dtype=torch.float64, device="cpu", generator=generator)
    leaves = {name: _leaf(tensor) for name, tensor in sample.operands.items()}
    try:
        whole = _select_output(call.run(leaves), labels, parts[0])
        together = _add_up([_run_part(call, labels, part, leaves) for part in parts])
    except Exception:  # whatever an operator raises on operands of another shape
        return False
    if not are_close(together, whole):
        return False
    return _have_equal_gradients(together, whole, _select_output(weight, labels, parts[0]), list(leaves.values()))


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.clone().requires_grad_(tensor.is_floating_point() or tensor.is_complex())


def _choose_parts(
    call: OperatorCall, label: FoundLabel, generator: torch.Generator, *, scattered: bool
) -> list[Tensor]:
    """Return one part of a dimension, or both where they are added up."""
    name, dim = label.operands[0]
    size = next(operand.shape for operand in call.operands if operand.name == name)[dim]
    if scattered:
        inside = torch.rand(size, device="cpu", generator=generator) < 0.5
        inside[0], inside[-1] = bool(inside[-1]) ^ True, inside[-1].item()
    else:
        start = int(torch.randint(0, size, (), device="cpu", generator=generator))
        stop = int(torch.randint(start + 1, size + 1, (), device="cpu", generator=generator))
        whole = (start, stop) == (0, size)
        places = torch.arange(size, device="cpu")
        inside = (places >= start + whole) & (places < stop)
    part, rest = inside.nonzero()[:, 0], (~inside).nonzero()[:, 0]
    return [part] if label.output is not None else [part, rest]


def _run_part(call: OperatorCall, labels: Sequence[FoundLabel], part: _Part, operands: Tensors) -> Tensor:
    local = dict(operands)
    sizes = {}
    for label, indices in zip(labels, part.indices, strict=True):
        for name, dim in label.operands:
            local[name] = local[name].index_select(dim, indices)
        sizes.update(dict.fromkeys(label.sizes, len(indices)))
    return call.run(local, sizes)


def _select_output(output: Tensor, labels: Sequence[FoundLabel], part: _Part) -> Tensor:
    for label, indices in zip(labels, part.indices, strict=True):
        if label.output is not None:
            output = output.index_select(label.output, indices)
    return output


def _add_up(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def _have_equal_gradients(together: Tensor, whole: Tensor, weight: Tensor, leaves: Sequence[Tensor]) -> bool:
    if together.requires_grad != whole.requires_grad:
        return False
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not whole.requires_grad or not wanted:
        return True
    try:
        expected = _differentiate(whole, weight, wanted)
    except Exception:  # an operator without a gradient, or without one of such a result
        return True
    try:
        found = _differentiate(together, weight, wanted)
    except Exception:  # whatever the operator raises on parts alone
        return False
    return all(are_close(_keep_finite(a, b), _keep_finite(b, b)) for a, b in zip(found, expected, strict=True))


def _keep_finite(gradient: Tensor, expected: Tensor) -> Tensor:
    """Return a gradient without what is infinite in the whole, where it may be of parts that were left out."""
    return torch.where(expected.isfinite(), gradient, 0.0)


def _differentiate(output: Tensor, weight: Tensor, leaves: Sequence[Tensor]) -> Sequence[Tensor]:
    scalar = (output * weight).sum()
    scalar = scalar.real + 2 * scalar.imag if scalar.is_complex() else scalar
    return torch.autograd.grad(scalar, list(leaves), allow_unused=True, materialize_grads=True)
