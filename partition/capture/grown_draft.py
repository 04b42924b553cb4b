"""Grows the draft of a model that was traced without the middle of a chain of like layers.

The layer before the middle, its example, is in the draft, and so is the one after it. The second must have the
operators of the first, so many layers on: of other parameters, and with names that are counted up as torch counts
them, which the trace has done for the layers between, too. Then each of these has the same operators, the names counted
up once more.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby

from ..draft.draft import Draft, DraftOp
from ..ir.arguments import rename_tensors
from ..operators.rules.movement import STORE
from ..operators.sharding.signature import DraftTensor
from ..repeats.graph_segment import CannotRepeat
from ..repeats.layer_chains import LayerChain

# As torch names the nodes of a graph, "add", "add_1", "add_2", and a draft the second operator of a node, "add_1~2".
_NUMBERED = re.compile(r"(\w+?)(?:_(\d+))?((?:~\d+)?)")


@dataclass(frozen=True)
class _Renaming:
    """Makes of the operators of one layer those of another, `count` layers on.

    makers: the operators of a draft by their outputs. increments: by how much a layer counts up the names of its
    operators. chained: what the layer computes and the one before it, which have other names then. old, new: the names
    of the two layers.
    """

    makers: Mapping[str, DraftOp]
    increments: Mapping[str, int]
    chained: AbstractSet[str]
    count: int
    old: str
    new: str

    def name(self, tensor: str) -> str:
        """Return the name of a tensor."""
        if tensor in self.makers:
            maker = self.makers[tensor]
            return self._name_op(maker) + tensor[len(maker.name) :] if tensor in self.chained else tensor
        return self.new + tensor[len(self.old) :] if _is_inside(tensor, self.old) else tensor

    def rename(self, op: DraftOp) -> DraftOp:
        """Return an operator of the layer as the other layer has it."""
        names = {tensor: self.name(tensor) for tensor in op.operands.values()}
        return DraftOp(
            self._name_op(op),
            op.target,
            rename_tensors(op.arguments, names),
            tuple(map(self.name, op.outputs)),
            self.new + op.module[len(self.old) :] if _is_inside(op.module, self.old) else op.module,
            op.source,
            tuple(map(self.name, op.writes)),
        )

    def _name_op(self, op: DraftOp) -> str:
        named_after = _find_named_after(op)
        if named_after is not None:
            return self.name(named_after) + op.name[len(named_after) :]
        base, number, suffix = _parse(op.name)
        return f"{base}_{number + self.count * self.increments.get(base, 0)}{suffix}"


def grow_draft(draft: Draft, chain: LayerChain, states: Sequence[str]) -> Draft:
    """Return the draft as if the skipped layers of a chain had been traced; CannotRepeat where that cannot be told.

    states: the names of all parameters and buffers of the step, in its order.
    """
    layers, count = (chain.before, chain.example, chain.after), len(chain.skipped)
    increments, draft = _close_gaps(draft, layers, count + 1)
    runs = _divide(draft, layers)
    _demand_order([layer for layer, _ in runs], layers)
    before, example, after = _pick(runs, layers)
    makers = {output: op for op in draft.ops for output in op.outputs}
    made = _list_outputs(example)
    chained = _list_outputs(before) | made
    _demand_apart(draft, runs, layers, made)
    targets = [*chain.skipped, chain.after]
    moves = [_Renaming(makers, increments, chained, i, chain.example, layer) for i, layer in enumerate(targets, 1)]
    linked = _relink(after, made, moves[-2])
    _demand_likeness(draft, example, after, [moves[-1].rename(op) for op in example], linked)
    grown = Draft(_grow_states(draft, makers, chain, states), [], draft.results)
    _demand_unread(draft, runs, chain.after, _list_outputs(after) - _list_outputs(linked.values()))
    for layer, ops in runs:
        for op in ops:
            _enter(op, linked.get(op.name, op), draft, grown)
        for renaming in moves[:-1] if layer == chain.example else ():
            for op in ops:
                _enter(op, renaming.rename(op), draft, grown)
    return grown


def _divide(draft: Draft, layers: Sequence[str]) -> list[tuple[str, list[DraftOp]]]:
    """Return consecutive operators of each of some layers, and, as of "", those between."""
    return [(layer, list(ops)) for layer, ops in groupby(draft.ops, lambda op: _find_layer(op, layers))]


def _pick(runs: Sequence[tuple[str, list[DraftOp]]], layers: Sequence[str]) -> list[list[DraftOp]]:
    """Return the operators of each layer."""
    return [[op for layer, ops in runs for op in ops if layer == one] for one in layers]


def _close_gaps(draft: Draft, layers: Sequence[str], count: int) -> tuple[dict[str, int], Draft]:
    """Return by how much a layer counts up names, and the draft with the names as if all layers had been traced.

    Where a part of the step has no gradients, torch takes the graph apart and counts names up once more, but no further
    than to the gap where the numbers of the middle are. count: of layers from the example to the one after the middle.
    """
    before, example, after = _pick(_divide(draft, layers), layers)
    increments, missing = _count_increments(before, example), dict[str, int]()
    for op, other in _pair(example, after):
        (base, number, _), (_, later, _) = _parse(op.name), _parse(other.name)
        gap = number + count * increments[base] - later
        if gap < 0 or missing.setdefault(base, gap) != gap:
            raise CannotRepeat(f"{other.name} is not {op.name} counted up")
    return increments, _count_up(draft, after[0], missing) if any(missing.values()) else draft


def _count_up(draft: Draft, first: DraftOp, missing: Mapping[str, int]) -> Draft:
    """Return the draft with the names from an operator on counted up. missing: by how much, by what they begin with."""
    begin, names = draft.ops.index(first), dict[str, str]()
    counted = Draft({}, draft.ops[:begin], draft.results)
    for op in draft.ops[begin:]:
        named_after = _find_named_after(op)
        if named_after is not None:
            name = names.get(named_after, named_after) + op.name[len(named_after) :]
        else:
            base, number, suffix = _parse(op.name)
            name = f"{base}_{number + missing[base]}{suffix}" if missing.get(base) else op.name
        outputs = tuple(name + output[len(op.name) :] for output in op.outputs)
        counted.ops.append(replace(op, name=name, outputs=outputs, arguments=rename_tensors(op.arguments, names)))
        names |= zip(op.outputs, outputs, strict=True)
    for old, tensor in draft.tensors.items():
        new = names.get(old, old)
        if new in counted.tensors:
            raise CannotRepeat(f"there are two {new}")
        counted.tensors[new] = replace(tensor, name=new)
    return replace(counted, results=[names.get(result, result) for result in draft.results])


def _relink(ops: Sequence[DraftOp], made: AbstractSet[str], renaming: _Renaming) -> dict[str, DraftOp]:
    """Return the operators of the layer after the middle by their names, as they read what the middle makes.

    made: what the example makes, which they read in the draft. A cast of it is named after it.
    """
    names, linked = {tensor: renaming.name(tensor) for tensor in made}, dict[str, DraftOp]()
    for op in ops:
        named_after = _find_named_after(op)
        name = names[named_after] + op.name[len(named_after) :] if named_after in names else op.name
        outputs = tuple(name + output[len(op.name) :] for output in op.outputs)
        names |= zip(op.outputs, outputs, strict=True)
        linked[op.name] = replace(op, name=name, outputs=outputs, arguments=rename_tensors(op.arguments, names))
    return linked


def _demand_unread(
    draft: Draft, runs: Sequence[tuple[str, list[DraftOp]]], after: str, renamed: AbstractSet[str]
) -> None:
    """Refuse a draft in which others read what has another name in the grown one."""
    for layer, ops in runs:
        for op in ops if layer != after else ():
            if not renamed.isdisjoint(op.operands.values()):
                raise CannotRepeat(f"{op.name} reads a cast of the chain")
    if not renamed.isdisjoint(draft.results):
        raise CannotRepeat("a result is a cast of the chain")


def _enter(op: DraftOp, renamed: DraftOp, draft: Draft, grown: Draft) -> None:
    """Enter an operator of a draft into the grown one."""
    for name, new in zip(op.outputs, renamed.outputs, strict=True):
        if new in grown.tensors:
            raise CannotRepeat(f"there are two {new}")
        grown.tensors[new] = replace(draft.tensors[name], name=new)
    grown.ops.append(renamed)


def _grow_states(
    draft: Draft, makers: Mapping[str, DraftOp], chain: LayerChain, states: Sequence[str]
) -> dict[str, DraftTensor]:
    """Return what no operator makes, with parameters and buffers of the skipped layers at their places."""
    given = {name: tensor for name, tensor in draft.tensors.items() if name not in makers}
    for tensor in list(given.values()):
        if _is_inside(tensor.name, chain.example):
            moved = [layer + tensor.name[len(chain.example) :] for layer in chain.skipped]
            given |= {name: replace(tensor, name=name) for name in moved}
    ordered = [name for name in dict.fromkeys(states) if name in given]
    return {name: given[name] for name in dict.fromkeys((*ordered, *given))}


def _find_layer(op: DraftOp, layers: Sequence[str]) -> str:
    """Return which of some layers an operator, or a copy into a buffer, belongs to; "" for none."""
    path = op.writes[0] if op.target == STORE else op.module
    return next((layer for layer in layers if _is_inside(path, layer)), "")


def _is_inside(path: str, layer: str) -> bool:
    return bool(layer) and (path + ".").startswith(layer + ".")


def _demand_order(runs: Sequence[str], layers: Sequence[str]) -> None:
    """Refuse a draft in which the operators of the three layers do not follow each other directly."""
    inside = [layer for layer in runs if layer]
    starts = [i for i, layer in enumerate(runs) if layer == layers[0]]
    if not starts or inside != [*layers] * len(starts) or any(list(runs[i : i + 3]) != [*layers] for i in starts):
        raise CannotRepeat("the layers do not follow each other")


def _demand_apart(
    draft: Draft, runs: Sequence[tuple[str, list[DraftOp]]], layers: Sequence[str], made: AbstractSet[str]
) -> None:
    """Refuse a draft in which others read what the example makes, which stands for what all skipped layers make."""
    for layer, ops in runs:
        for op in ops if layer not in layers[1:] else ():
            if not made.isdisjoint(op.operands.values()):
                raise CannotRepeat(f"{op.name} reads what a layer makes within the chain")
    if not made.isdisjoint(draft.results):
        raise CannotRepeat("a result is made within the chain")


def _demand_likeness(
    draft: Draft,
    example: Sequence[DraftOp],
    after: Sequence[DraftOp],
    moved_example: Sequence[DraftOp],
    linked: Mapping[str, DraftOp],
) -> None:
    """Refuse layers of which the one after the middle is not as the example would be in its place.

    moved_example: the operators of the example there. linked: those of the layer after it, by their names in the draft.
    """
    for op, other, moved in zip(example, after, moved_example, strict=True):
        if moved != linked[other.name]:
            raise CannotRepeat(f"{other.name} is not {op.name} of another layer")
        forms = [[replace(draft.tensors[name], name="") for name in one.outputs] for one in (op, other)]
        if forms[0] != forms[1]:
            raise CannotRepeat(f"{other.name} has not the form of {op.name}")


def _count_increments(layer: Sequence[DraftOp], following: Sequence[DraftOp]) -> dict[str, int]:
    """Return by how much a layer counts up the names of its operators, each given by what it begins with."""
    increments: dict[str, int] = {}
    for op, other in _pair(layer, following):
        (base, number, suffix), (same, later, other_suffix) = _parse(op.name), _parse(other.name)
        step = later - number
        if (base, suffix) != (same, other_suffix) or step <= 0 or increments.setdefault(base, step) != step:
            raise CannotRepeat(f"{other.name} is not {op.name} counted up")
    return increments


def _pair(layer: Sequence[DraftOp], other: Sequence[DraftOp]) -> Iterator[tuple[DraftOp, DraftOp]]:
    """Pair the operators of two layers, but for those that are named after a tensor."""
    if len(layer) != len(other):
        raise CannotRepeat("the layers have not as many operators")
    return (pair for pair in zip(layer, other, strict=True) if "." not in pair[0].name)


def _find_named_after(op: DraftOp) -> str | None:
    """Return the tensor after which an operator is named, as a cast is, or the copy into a buffer."""
    return next((name for name in op.operands.values() if op.name.startswith(name + ".")), None)


def _parse(name: str) -> tuple[str, int, str]:
    """Return base and number of the name of an operator, and what follows it."""
    found = _NUMBERED.fullmatch(name)
    if found is None:
        raise CannotRepeat(f"the name {name} is not counted up")
    return found[1], int(found[2] or 0), found[3]


def _list_outputs(ops: Iterable[DraftOp]) -> frozenset[str]:
    return frozenset(output for op in ops for output in op.outputs)
