"""Layers that repeat are drawn once, with their number: nodes whose operators, cut and traffic are those of the layer
before, and whose module has another number, are folded into the first of them. Nothing is folded that differs in
anything that the map shows; steps of a recurrent net are of one module, and are not layers.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from .cut_map_edges import Crossing, assign_received
from .cut_map_fusing import MapNode

FEW_NODES = 24  # that many fit on a screen, unfolded
_MIN_LAYERS = 3
_MAX_PERIOD = 120
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class FoldedLayers:
    """Layers that are alike: `count` times `period` nodes from `start` on."""

    start: int
    period: int
    count: int

    @property
    def hidden(self) -> int:
        return self.period * (self.count - 1)


def fold_repeats(nodes: list[MapNode], crossed: Mapping[str, Crossing]) -> list[MapNode]:
    """Return the nodes with repeated layers folded; all of them where they are few or nothing repeats."""
    if len(nodes) <= FEW_NODES:
        return nodes
    received = assign_received(nodes, crossed)
    looks = [_describe_node(i, node, crossed, received.get(i, [])) for i, node in enumerate(nodes)]
    kinds = {look: number for number, look in enumerate(dict.fromkeys(looks))}
    marks = [kinds[look] for look in looks]
    home = list(range(len(nodes)))
    copies: dict[int, list[MapNode]] = {}
    for repeat in _find_repeats(nodes, marks, 0, len(nodes)):
        for i in range(repeat.start + repeat.period, repeat.start + repeat.period * repeat.count):
            home[i] = repeat.start + (i - repeat.start) % repeat.period
            copies.setdefault(home[i], []).append(nodes[i])
    kept = [i for i, other in enumerate(home) if i == other]
    place = {i: position for position, i in enumerate(kept)}
    return [
        replace(
            nodes[i],
            inputs=tuple(sorted({place[home[source]] for source in nodes[i].inputs})),
            copies=tuple(node.ops for node in copies.get(i, [])),
        )
        for i in kept
    ]


def count_folded(nodes: Sequence[MapNode]) -> int:
    """Return how many operators are folded away."""
    return sum(len(ops) for node in nodes for ops in node.copies)


def _describe_node(i: int, node: MapNode, crossed: Mapping[str, Crossing], received: Sequence[Crossing]) -> Hashable:
    """Return all that the map shows of a node, but for names: nodes of which it is the same look the same."""
    operators = tuple(
        (
            op.op,
            op.flops,
            tuple((loop.size, loop.kind) for loop in op.loops),
            tuple((tuple(map(tuple, piece.box)), piece.machine) for piece in op.boxes),
        )
        for op in node.ops
    )
    sent = crossed.get(node.ops[-1].name)
    arrived = sum(item.total for item in received)  # of which machines they come varies from layer to layer
    sources = tuple(i - source for source in node.inputs)
    layer = _NUMBER.sub("#", _name(node)) if sources else ""
    return layer, operators, sources, tuple(sorted(sent.pairs.items())) if sent else (), arrived


def _find_repeats(nodes: list[MapNode], marks: list[int], start: int, stop: int) -> list[FoldedLayers]:
    """Return repeats between two positions, those that hide most first, then what is before and after them.

    marks: of each node, alike where nodes look alike.
    """
    best = FoldedLayers(start, 1, 1)
    for period in range(1, min(_MAX_PERIOD, (stop - start) // _MIN_LAYERS) + 1):
        alike = 0
        for i in range(start, stop - period + 1):
            if i + period < stop and marks[i] == marks[i + period] and _name(nodes[i]) != _name(nodes[i + period]):
                alike += 1
                continue
            found = _align_layers(nodes, i - alike, period, alike + period) if alike else best
            if found.count >= _MIN_LAYERS and found.hidden > best.hidden:
                best = found
            alike = 0
    if best.count == 1:
        return []
    end = best.start + best.period * best.count
    return [best, *_find_repeats(nodes, marks, start, best.start), *_find_repeats(nodes, marks, end, stop)]


def _align_layers(nodes: list[MapNode], start: int, period: int, length: int) -> FoldedLayers:
    """Begin where the name of the module gets another number, if that folds no fewer layers than beginning at once."""
    for first in range(max(start, 1), start + length % period + 1):
        if _number_layer(nodes[first]) != _number_layer(nodes[first - 1]):
            return FoldedLayers(first, period, (length - (first - start)) // period)
    return FoldedLayers(start, period, length // period)


def _name(node: MapNode) -> str:
    return node.ops[0].module


def _number_layer(node: MapNode) -> str:
    found = _NUMBER.search(_name(node))
    return found[0] if found else ""
