"""Finds the sharding rule of an operator by running it: which dimensions of its operands follow which of its result.

1. The call is made small, and operands of several styles are made up; those on which it runs are the samples.
2. One index of an operand at a time is changed, and the places of the result that change with it propose labels.
3. Labels are tried one by one and then together: parts of the operands must give the parts of the result.

All is seeded, so that every process finds the same.
"""

import functools
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..ir.arguments import find_overload
from ..ir.random_ops import is_random
from ..trace.suspended_trace import suspend_trace
from .dependence import Sample, find_following, propose_parallel, propose_summed
from .made_up_operands import STYLES, integer_ranges, make_operands
from .operator_call import OperatorCall
from .rounding import are_close
from .rule_data import FoundLabel, FoundRule
from .smaller_shapes import shrink_call
from .verification import holds

CHECKED = "aten"  # torch's own operators refuse operands that do not fit; one of a library may read past their end


@functools.cache
def search_rule(call: OperatorCall) -> FoundRule | None:
    """Return the rule of a call; None where none was found, as of an operator that overwrites, or that draws."""
    if not call.target.startswith(f"{CHECKED}.") or _may_do_more(call):
        return None
    with suspend_trace(), torch.random.fork_rng(devices=[]), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = shrink_call(call)
        return None if small is None else _search(call, small)


def _may_do_more(call: OperatorCall) -> bool:
    """Whether an operator does more than compute a result of its operands."""
    return bool(find_overload(call.target)._schema.is_mutable) or is_random(call.target, call.plain)


def _search(call: OperatorCall, small: OperatorCall) -> FoundRule | None:
    samples = list(_make_samples(small))
    if not samples:
        return None
    labels: list[FoundLabel] = []
    following = find_following(small, samples)
    for output, (size, whole_size) in enumerate(zip(small.output, call.output, strict=True)):
        if size > 1 and whole_size > 1:
            labels += _first_that_holds(call, small, propose_parallel(small, following, output), labels, samples)
    if samples[0].output.is_floating_point() or samples[0].output.is_complex():
        for proposed in propose_summed(small, following):
            labels += _first_that_holds(call, small, iter([proposed]), labels, samples)
    return FoundRule(tuple(labels)) if labels else None


def _make_samples(call: OperatorCall) -> Iterator[Sample]:
    for seed, style in enumerate(STYLES):
        sample = next(_sample_style(call, style, seed), None)
        if sample is not None:
            yield sample


def _sample_style(call: OperatorCall, style: str, seed: int) -> Iterator[Sample]:
    """Yield operands of a style on which the operator runs, and gives the same twice."""
    for integers in integer_ranges(call):
        generator = torch.Generator().manual_seed(seed)  # integers have no styles, and differ by it
        operands, others = (make_operands(call, style, integers=integers, generator=generator) for _ in range(2))
        try:
            output, again = _run_seeded(call, operands, 0), _run_seeded(call, operands, 1)
        except Exception:  # whatever an operator raises on values that do not suit it
            continue
        if tuple(output.shape) == call.output and are_close(output, again) and bool(output.isfinite().any()):
            yield Sample(operands, output, others)


def _run_seeded(call: OperatorCall, operands: dict[str, Tensor], seed: int) -> Tensor:
    torch.manual_seed(seed)
    return call.run(operands)


def _first_that_holds(
    call: OperatorCall,
    small: OperatorCall,
    proposed: Iterator[FoundLabel],
    labels: Sequence[FoundLabel],
    samples: Sequence[Sample],
) -> list[FoundLabel]:
    """Return the first proposed label that holds alone and with those found so far; none where none does."""
    taken = {at for label in labels for at in label.operands}
    for label in proposed:
        if not taken.isdisjoint(label.operands) or not _has_one_size(call, label):
            continue
        if holds(small, [label], samples) and (not labels or holds(small, [*labels, label], samples)):
            return [label]
    return []


def _has_one_size(call: OperatorCall, label: FoundLabel) -> bool:
    """Whether the dimensions of a label are of one size in the call's own shapes too."""
    shapes = {operand.name: operand.shape for operand in call.operands}
    sizes = {shapes[name][dim] for name, dim in label.operands}
    return len(sizes | ({call.output[label.output]} if label.output is not None else set())) == 1
