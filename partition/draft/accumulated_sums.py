"""Takes sums apart that a model adds up piece by piece, as what the experts of a mixture give.

An operator that adds something of a dynamic size to a tensor becomes two: what is added, and the sum. So no expert
waits for another. `out[mask] += y`, which puts back what it took and added to, is such an operator, too. A chain of
such sums becomes a tree of pairs, so that neighbours that are on one machine can be added there before they travel;
this changes no more than the rounding.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..ir.arguments import bind_arguments
from .draft import Draft, DraftOp, drop_unneeded
from .found_places import find_column

aten = torch.ops.aten


def split_sums(ops: Iterable[DraftOp], draft: Draft, is_dynamic: Callable[[DraftOp], bool]) -> list[DraftOp]:
    """Return operators with what is added apart from the sums, and these as trees; new tensors enter the draft.

    is_dynamic: whether an operator reads or makes what has a dynamic size.
    """
    found, parts = list[DraftOp](), set[str]()
    for op in _find_accumulations(list(ops), draft):
        if _accumulates(op, draft) and is_dynamic(op):
            found += _split(op, draft)
            parts.add(found[-2].name)
        else:
            found.append(op)
    return _balance(found, parts, draft)


def _find_accumulations(ops: Sequence[DraftOp], draft: Draft) -> list[DraftOp]:
    """Return operators with `out[index] = out[index] + y` as `out[index] += y`, where no place comes twice."""
    makers = {name: op for op in ops for name in op.outputs}
    return drop_unneeded(replace(draft, ops=[_as_accumulation(op, makers, draft) for op in ops]))


def _as_accumulation(op: DraftOp, makers: Mapping[str, DraftOp], draft: Draft) -> DraftOp:
    if op.target != "aten.index_put.default" or op.arguments["accumulate"] is True:
        return op
    total = makers.get(op.arguments["values"]["tensor"])
    if total is None or total.target != "aten.add.Tensor" or total.arguments["alpha"] != 1:
        return op
    for before, added in (("self", "other"), ("other", "self")):
        values = total.arguments[added]
        if not isinstance(values, dict) or not _takes(total.arguments[before], op, makers, draft):
            continue
        if draft.tensors[values["tensor"]].dtype == draft.tensors[op.outputs[0]].dtype:
            return replace(op, arguments={**op.arguments, "values": values, "accumulate": True})
    return op


def _takes(value: Any, put: DraftOp, makers: Mapping[str, DraftOp], draft: Draft) -> bool:
    """Whether a value is what stood where an operator puts another, in places of which none comes twice."""
    maker = makers.get(value["tensor"]) if isinstance(value, dict) else None
    if maker is None or maker.target != "aten.index.Tensor" or maker.arguments["self"] != put.arguments["self"]:
        return False
    given = [index for index in put.arguments["indices"] if index is not None]
    return maker.arguments["indices"] == put.arguments["indices"] and _are_unique(given, makers, draft)


def _are_unique(indices: Sequence[Any], makers: Mapping[str, DraftOp], draft: Draft) -> bool:
    """Whether indices say each place once: a mask does, and so does all that `nonzero` finds."""
    names = [index["tensor"] for index in indices]
    if len(names) == 1 and draft.tensors[names[0]].dtype == "bool":
        return True
    parts = [find_column(name, makers, draft.tensors) for name in names]
    columns = {part.column for part in parts if part is not None}
    masks = {part.mask for part in parts if part is not None}
    return None not in parts and len(masks) == 1 and len(columns) == len(draft.tensors[masks.pop()].shape)


def _accumulates(op: DraftOp, draft: Draft) -> bool:
    if op.target != "aten.index_add.default" and op.arguments.get("accumulate") is not True:
        return False
    before, after = draft.tensors[op.arguments["self"]["tensor"]], draft.tensors[op.outputs[0]]
    return before.kind == after.kind == "value" and before.dtype == after.dtype


def _split(op: DraftOp, draft: Draft) -> list[DraftOp]:
    (total,) = op.outputs
    info, zeros, part = draft.tensors[total], f"{total}.zeros", f"{total}.part"
    draft.tensors[part] = replace(info, name=part)
    draft.tensors[zeros] = replace(info, name=zeros, kind="dynamic")  # which keeps it within the island
    full = {**bind_arguments(aten.full.default, (), {}), "size": list(info.shape), "fill_value": 0}
    full["dtype"] = {"dtype": info.dtype}
    return [
        replace(op, name=zeros, target="aten.full.default", arguments=full, outputs=(zeros,)),
        replace(op, name=part, arguments={**op.arguments, "self": {"tensor": zeros}}, outputs=(part,)),
        _add(op, op.arguments["self"]["tensor"], part),
    ]


def _add(op: DraftOp, one: str, other: str) -> DraftOp:
    operands: dict[str, Any] = {"self": {"tensor": one}, "other": {"tensor": other}}
    return replace(op, target="aten.add.Tensor", arguments=bind_arguments(aten.add.Tensor, (), {}) | operands)


def _balance(ops: Sequence[DraftOp], parts: set[str], draft: Draft) -> list[DraftOp]:
    """Return the operators with each chain of sums as its begin plus a tree of what is added, where the chain ends."""
    read = Counter([name for op in ops for name in op.operands.values()] + draft.results)
    sums = {op.outputs[0]: op for op in ops if parts.intersection(op.operands.values())}
    inner = {_operands(op)[0] for op in sums.values()} & {total for total in sums if read[total] == 1}
    found = list[DraftOp]()
    for op in ops:
        (total, *_) = op.outputs
        if total not in sums:
            found.append(op)
        elif total not in inner:
            chain = [_operands(op)]
            while chain[0][0] in inner:
                chain.insert(0, _operands(sums[chain[0][0]]))
            begin, added = chain[0][0], [part for _, part in chain]
            found += _add_pairs(op, begin, added, draft)
    return found


def _operands(op: DraftOp) -> tuple[str, str]:
    return op.arguments["self"]["tensor"], op.arguments["other"]["tensor"]


def _add_pairs(op: DraftOp, begin: str, added: list[str], draft: Draft) -> list[DraftOp]:
    """Return the operators that add tensors in pairs, and in the end what the sum begins with."""
    found, info = list[DraftOp](), draft.tensors[op.outputs[0]]
    while len(added) > 1:
        paired = list[str]()
        for one, other in zip(added[::2], added[1::2], strict=False):
            name = f"{info.name}.pair{len(found)}"
            draft.tensors[name] = replace(info, name=name)
            found.append(replace(_add(op, one, other), name=name, outputs=(name,)))
            paired.append(name)
        added = [*paired, *added[2 * len(paired) :]]
    return [*found, _add(op, begin, *added)]
