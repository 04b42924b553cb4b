"""A rule found by running as a written rule would give it: the signature of one call in a draft."""

import math
from collections.abc import Mapping
from typing import Any

from ..operators.call_flops import count_call_flops
from ..operators.found_rule import SIZES
from ..operators.sharding.signature import DraftTensor, Label, Labels, Signature
from .operator_call import OperandSpec, OperatorCall, describe_call
from .rule_data import FoundLabel, FoundRule
from .search import search_rule


def find_signature(
    target: str, arguments: Mapping[str, Any], tensors: Mapping[str, DraftTensor], output: DraftTensor
) -> tuple[Signature, dict[str, Any]] | None:
    """Return the signature of a call, and its arguments with what the rule adds to them; None where no rule is found.

    arguments: as plain data, tensors by their names in `tensors`.
    """
    call = describe_call(target, arguments, tensors, output)
    rule = search_rule(call)
    if rule is None:
        return None
    sizes = [[at.argument, at.place, label.output] for label in rule.labels for at in label.sizes]
    return _build_signature(call, rule), {**arguments, **({SIZES: sizes} if sizes else {})}


def _build_signature(call: OperatorCall, rule: FoundRule) -> Signature:
    output = [f"d{d}" for d in range(len(call.output))]
    names = {label: _name(label) for label in rule.labels}
    summed = frozenset(name for label, name in names.items() if label.output is None)
    found = {at: name for label, name in names.items() for at in label.operands}
    operands: dict[str, Labels] = {operand.name: _label_operand(operand, found) for operand in call.operands}
    shapes = {operand.name: operand.shape for operand in call.operands}
    added = math.prod(shapes[label.operands[0][0]][label.operands[0][1]] for label in names if label.output is None)
    return Signature(
        operands,
        output,
        summed=summed,
        fixed=frozenset(output) - frozenset(names.values()),
        work=_count_flops(call) / (math.prod(call.output) * added),
    )


def _name(label: FoundLabel) -> str:
    if label.output is not None:
        return f"d{label.output}"
    operand, dim = label.operands[0]
    return f"{operand}.{dim}"


def _label_operand(operand: OperandSpec, found: Mapping[tuple[str, int], str]) -> list[Label]:
    return [found.get((operand.name, d)) for d in range(len(operand.shape))]


def _count_flops(call: OperatorCall) -> float:
    """Return the FLOPs of a whole call as those of an opaque one are counted: one for each element at least."""
    elements = math.prod(call.output) + sum(math.prod(operand.shape) for operand in call.operands)
    counted = count_call_flops(call.target, call.plain, {o.name: (o.shape, o.dtype) for o in call.operands})
    return float(max(elements, counted or 0.0))
