"""Which elements of a result change with which of an operand, seen by changing one index of one dimension at a time.

A dimension of an operand may follow one of the result where index i of the one changes nothing but index i of the
other. What is proposed here is only seen at a few values; `verification` decides.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from .operator_call import OperatorCall, PlainSize, Tensors
from .rounding import find_differences
from .rule_data import FoundLabel

Dimension = tuple[str, int]  # of an operand

OBSERVED_SAMPLES = 3  # that are changed; all are verified
MAX_SUMMED_OPERANDS = 4


@dataclass(frozen=True)
class Sample:
    """Operands on which a call runs, its result, and other operands of the same style."""

    operands: Tensors
    output: Tensor
    others: Tensors


@dataclass
class Following:
    """What is known of a dimension of an operand: the dimensions of the result that it may follow.

    seen: whether anything has changed at all. tried: whether the operator has run at all on changed values.
    """

    may: set[int]
    seen: bool = False
    tried: bool = False


def find_following(call: OperatorCall, samples: Sequence[Sample]) -> dict[Dimension, Following]:
    """Return what each dimension of an operand may follow, by changing its first, a middle and its last index."""
    found: dict[Dimension, Following] = {}
    for operand in call.operands:
        for dim, size in enumerate(operand.shape):
            if size < 2:
                continue
            following = Following({d for d, length in enumerate(call.output) if length == size})
            for sample, index in product(samples[:OBSERVED_SAMPLES], sorted({0, size // 2, size - 1})):
                _observe(call, sample, (operand.name, dim), index, following)
            if not following.tried:
                following.may.clear()
            found[operand.name, dim] = following
    return found


def _observe(call: OperatorCall, sample: Sample, at: Dimension, index: int, following: Following) -> None:
    name, dim = at
    changed = sample.operands[name].clone()
    changed.select(dim, index).copy_(sample.others[name].select(dim, index))
    try:
        output = call.run({**sample.operands, name: changed})
    except Exception:  # values that do not suit the operator, such as a matrix that is no longer definite
        return
    following.tried = True
    if output.shape != sample.output.shape:  # as of `repeat_interleave`, whose counts are values
        following.may.clear()
        return
    places = find_differences(output, sample.output).nonzero()
    following.seen |= bool(len(places))
    following.may = {d for d in following.may if bool((places[:, d] == index).all())}


def propose_parallel(call: OperatorCall, following: Mapping[Dimension, Following], output: int) -> Iterator[FoundLabel]:
    """Yield labels for a dimension of the result, the likeliest first.

    Where an operand's values change nothing, its shape may matter still: then the dimension at the same place follows.
    """
    seen = [_choose(call, following, output, operand.name, seen=True) for operand in call.operands]
    unseen = [_choose(call, following, output, operand.name, seen=False) for operand in call.operands]
    together = [a if a is not None else b for a, b in zip(seen, unseen, strict=True)]
    for choice in dict.fromkeys((tuple(filter(None, together)), tuple(filter(None, seen)))):
        if choice:
            yield FoundLabel(output, choice)
            yield from (FoundLabel(output, choice, (at,)) for at in _find_plain_sizes(call, call.output[output]))


def _choose(
    call: OperatorCall, following: Mapping[Dimension, Following], output: int, name: str, *, seen: bool
) -> Dimension | None:
    """Return the dimension of an operand that may follow one of the result; at the same place if there are several."""
    shape = next(operand.shape for operand in call.operands if operand.name == name)
    may = [
        (name, dim)
        for dim in range(len(shape))
        if (name, dim) in following and output in following[name, dim].may and following[name, dim].seen == seen
    ]
    place = output + len(shape) - len(call.output)
    return min(may, key=lambda at: (at[1] != output, at[1] != place, at[1]), default=None)


def _find_plain_sizes(call: OperatorCall, size: int) -> Iterator[PlainSize]:
    """Yield the places of a size in arguments that are lists of numbers."""
    for name, value in sorted(call.plain.items()):
        if isinstance(value, list):
            yield from (PlainSize(name, i) for i, number in enumerate(value) if number == size and number is not True)


def propose_summed(call: OperatorCall, following: Mapping[Dimension, Following]) -> Iterator[FoundLabel]:
    """Yield labels along which parts of the result may be added up: dimensions of one size that follow nothing."""
    free = [at for at, known in following.items() if not known.may and known.seen]
    shapes = {operand.name: operand.shape for operand in call.operands}
    for size in sorted({shapes[name][dim] for name, dim in free}):
        alike = [(name, dim) for name, dim in free if shapes[name][dim] == size]
        choices = [[at for at in alike if at[0] == name] for name in dict.fromkeys(name for name, _ in alike)]
        if len(choices) <= MAX_SUMMED_OPERANDS:
            yield from (FoundLabel(None, choice) for choice in product(*choices))
