"""Grows the draft of a model that was traced without the middle of a chain of like layers.

The layer before the middle and the one after it are in the draft. The operators of the second must be those of the
first, one layer on: of other parameters, and with names that are counted up as torch counts them. Then so are those of
each layer between, and whatever comes later is counted up by as many.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby

from ..draft.draft import Draft, DraftOp
from ..ir.arguments import find_tensors, rename_tensors
from ..operators.rules.movement import STORE
from ..operators.sharding.signature import DraftTensor
from ..repeats.graph_segment import CannotRepeat
from ..repeats.layer_chains import LayerChain

_NUMBERED = re.compile(r"(\w+?)(?:_(\d+))?")  # as torch names the nodes of a graph: "add", "add_1", "add_2"


@dataclass(frozen=True)
class _Renaming:
    """Gives operators the names that they have some layers on.

    makers: the operators of a draft by their outputs. steps: by how much a layer counts up the names of its operators.
    values: the outputs that get other names. count: of layers. layer: the first one in the chain that is renamed, and
    its name then.
    """

    makers: Mapping[str, DraftOp]
    steps: Mapping[str, int]
    values: AbstractSet[str]
    count: int
    layer: tuple[str, str] | None = None

    def name(self, tensor: str) -> str:
        """Return the name of a tensor."""
        if tensor in self.makers:
            maker = self.makers[tensor]
            return self._name_op(maker) + tensor[len(maker.name) :] if tensor in self.values else tensor
        if self.layer is None or not _is_inside(tensor, self.layer[0]):
            return tensor
        return self.layer[1] + tensor[len(self.layer[0]) :]

    def rename(self, op: DraftOp) -> DraftOp:
        """Return an operator, which is renamed itself."""
        names = {tensor: self.name(tensor) for tensor in find_tensors(op.arguments).values()}
        old, new = self.layer or ("", "")
        return DraftOp(
            self._name_op(op),
            op.target,
            rename_tensors(op.arguments, names),
            tuple(map(self.name, op.outputs)),
            new + op.module[len(old) :] if _is_inside(op.module, old) else op.module,
            op.source,
            tuple(map(self.name, op.writes)),
        )

    def _name_op(self, op: DraftOp) -> str:
        named_after = [name for name in find_tensors(op.arguments).values() if op.name.startswith(name + ".")]
        if named_after:  # a cast, or the copy into a buffer
            return self.name(named_after[0]) + op.name[len(named_after[0]) :]
        base, number = _parse(op.name)
        number += self.count * self.steps.get(base, 0)
        return f"{base}_{number}" if number else base


def grow_draft(draft: Draft, chain: LayerChain) -> Draft:
    """Return the draft as if the skipped layers of a chain had been traced; CannotRepeat where that cannot be told."""
    layers = (chain.last_before, chain.first, chain.last)
    runs = [(layer, list(ops)) for layer, ops in groupby(draft.ops, lambda op: _find_layer(op, layers))]
    _demand_order([layer for layer, _ in runs], layers)
    before, first, last = ([op for layer, ops in runs for op in ops if layer == one] for one in layers)
    makers = {output: op for op in draft.ops for output in op.outputs}
    steps, made = _count_steps(first, last), _list_outputs(first)
    chained = _list_outputs(before) | made
    start = next(i for i, (layer, _) in enumerate(runs) if layer == chain.last)
    late = _list_outputs(op for _, ops in runs[start:] for op in ops) - chained
    _demand_apart(draft, runs, layers, made, late)

    def move_on(count: int, layer: str) -> _Renaming:
        return _Renaming(makers, steps, chained, count, (chain.first, layer))

    _demand_likeness(draft, first, last, move_on(1, chain.last))
    moves = [move_on(count, layer) for count, layer in enumerate(chain.skipped, 1)]
    count_up = _Renaming(makers, steps, late, len(moves))
    after_middle = replace(count_up, values=late | made)
    grown = Draft(_grow_states(draft, makers, chain), [], [count_up.name(name) for name in draft.results])
    for i, (layer, ops) in enumerate(runs):
        renamings: list[_Renaming | None] = [None]
        if layer == chain.first:
            renamings += moves
        elif layer != chain.last_before and i >= start:
            renamings = [after_middle if layer == chain.last else count_up]
        for renaming in renamings:
            for op in ops:
                _enter(op, op if renaming is None else renaming.rename(op), draft, grown)
    return grown


def _enter(op: DraftOp, renamed: DraftOp, draft: Draft, grown: Draft) -> None:
    """Enter an operator of a draft into the grown one."""
    for name, new in zip(op.outputs, renamed.outputs, strict=True):
        if new in grown.tensors:
            raise CannotRepeat(f"there are two {new}")
        grown.tensors[new] = replace(draft.tensors[name], name=new)
    grown.ops.append(renamed)


def _grow_states(draft: Draft, makers: Mapping[str, DraftOp], chain: LayerChain) -> dict[str, DraftTensor]:
    """Return what no operator makes, with parameters and buffers of the skipped layers after those of the first."""
    grown: dict[str, DraftTensor] = {}
    states = [tensor for name, tensor in draft.tensors.items() if name not in makers]
    for layer, tensors in groupby(states, lambda t: _find_layer_of_state(t.name, (chain.first, chain.last))):
        block = list(tensors)
        grown |= {tensor.name: tensor for tensor in block}
        for skipped in chain.skipped if layer == chain.first else ():
            moved = [replace(tensor, name=skipped + tensor.name[len(layer) :]) for tensor in block]
            grown |= {tensor.name: tensor for tensor in moved}
    return grown


def _find_layer(op: DraftOp, layers: Sequence[str]) -> str:
    """Return which of some layers an operator, or a copy into a buffer, belongs to; "" for none."""
    if op.target == STORE:
        return _find_layer_of_state(op.writes[0], layers)
    return next((layer for layer in layers if _is_inside(op.module, layer)), "")


def _find_layer_of_state(name: str, layers: Sequence[str]) -> str:
    return next((layer for layer in layers if _is_inside(name, layer)), "")


def _is_inside(path: str, layer: str) -> bool:
    return bool(layer) and (path + ".").startswith(layer + ".")


def _demand_order(runs: Sequence[str], layers: Sequence[str]) -> None:
    """Refuse a draft in which the operators of the three layers do not follow each other directly."""
    inside = [layer for layer in runs if layer]
    starts = [i for i, layer in enumerate(runs) if layer == layers[0]]
    if not starts or inside != [*layers] * len(starts) or any(list(runs[i : i + 3]) != [*layers] for i in starts):
        raise CannotRepeat("the layers do not follow each other")


def _demand_apart(
    draft: Draft,
    runs: Sequence[tuple[str, list[DraftOp]]],
    layers: Sequence[str],
    made: AbstractSet[str],
    late: AbstractSet[str],
) -> None:
    """Refuse a draft in which others read what the first layer makes, which stands for what all skipped ones make."""
    for layer, ops in runs:
        for op in ops:
            read = find_tensors(op.arguments).values()
            if layer not in layers[1:] and not made.isdisjoint(read):
                raise CannotRepeat(f"{op.name} reads what a layer makes within the chain")
            if layer in layers[:2] and not late.isdisjoint(read):
                raise CannotRepeat(f"{op.name} reads what is made after it")
    if not made.isdisjoint(draft.results):
        raise CannotRepeat("a result is made within the chain")


def _demand_likeness(draft: Draft, first: Sequence[DraftOp], last: Sequence[DraftOp], renaming: _Renaming) -> None:
    """Refuse layers of which the last is not as the first would be one layer on."""
    for op, other in zip(first, last, strict=True):
        tensors = [replace(draft.tensors[name], name=renaming.name(name)) for name in op.outputs]
        if renaming.rename(op) != other or tensors != [draft.tensors[name] for name in other.outputs]:
            raise CannotRepeat(f"{other.name} is not {op.name} of another layer")


def _count_steps(first: Sequence[DraftOp], last: Sequence[DraftOp]) -> dict[str, int]:
    """Return by how much a layer counts up the names of its operators."""
    if len(first) != len(last):
        raise CannotRepeat("the layers have not as many operators")
    steps: dict[str, int] = {}
    for op, other in zip(first, last, strict=True):
        if "." in op.name:  # named after a tensor
            continue
        (base, number), (same, later) = _parse(op.name), _parse(other.name)
        if base != same or steps.setdefault(base, later - number) != later - number or later <= number:
            raise CannotRepeat(f"{other.name} is not {op.name} counted up")
    return steps


def _parse(name: str) -> tuple[str, int]:
    """Return base and number of the name of an operator."""
    found = _NUMBERED.fullmatch(name)
    if found is None:
        raise CannotRepeat(f"the name {name} is not counted up")
    return found[1], int(found[2] or 0)


def _list_outputs(ops: Iterable[DraftOp]) -> frozenset[str]:
    return frozenset(output for op in ops for output in op.outputs)
