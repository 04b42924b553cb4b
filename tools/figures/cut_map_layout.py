"""Where the boxes of the cut map stand: light operators join the one they follow, layers run on and wrap like text."""

import re
from collections import Counter
from dataclasses import dataclass, replace

from ...partition.placement.placement_file import OpPlacement, Placement

WIDTH = 1120.0
LEFT, RIGHT = 44.0, 30.0
PILL = 24.0
LINE_HEIGHT = 13.0

_HEAVY = re.compile(r"linear|conv|mm|matmul|einsum|attention|embedding|lstm|gru|rnn|local|unfold", re.IGNORECASE)
_LIGHT_SHARE = 0.02
_LONGEST_TAIL = 7
_NARROW = 20.0


@dataclass(frozen=True)
class Node:
    """One box of the map: a leading operator and the light ones fused to it. inputs: the nodes it reads."""

    ops: tuple[OpPlacement, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Scale:
    """Sizes for few, some and many boxes.

    sheet: how far a fused operator stands out behind its leader; labels: lines of text under a box, and one for fused
    operators where `names_fused`; pairs: most single threads that a crossing is drawn with; ring: radius.
    """

    box: float
    height: float
    gap: float
    sheet: float
    labels: int
    names_fused: bool
    pairs: int
    ring: float


ROOMY = Scale(box=116, height=150, gap=92, sheet=6, labels=3, names_fused=True, pairs=12, ring=4)
MEDIUM = Scale(box=74, height=112, gap=70, sheet=4, labels=3, names_fused=True, pairs=12, ring=3.2)
COMPACT = Scale(box=42, height=60, gap=44, sheet=3, labels=2, names_fused=False, pairs=2, ring=3.2)


@dataclass(frozen=True)
class Seat:
    """Where a node stands: line, column within the line, x, y from the top of the line, width and height."""

    line: int
    column: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Line:
    """One line of columns, as lines of text in a page. columns: left and right edge of each; height: without lanes."""

    columns: tuple[tuple[float, float], ...]
    height: float


def is_light(op: OpPlacement, heaviest: float) -> bool:
    """Whether the operator does next to no work, as activations, views and dropout do."""
    return op.flops < _LIGHT_SHARE * heaviest and not _HEAVY.search(op.op)


def fuse(placement: Placement) -> list[Node]:
    """The nodes in order of execution. A light operator joins the chain before it unless bytes cross or it branches."""
    heaviest = max((op.flops for op in placement.ops), default=0.0)
    crossing = {item.tensor for item in placement.predicted.traffic}
    known = {op.name for op in placement.ops}
    readers = Counter(name for op in placement.ops for name in set(op.inputs))
    groups: list[list[OpPlacement]] = []
    home: dict[str, int] = {}
    for op in placement.ops:
        sources = {name for name in op.inputs if name in known}
        only = next(iter(sources)) if len(sources) == 1 else None
        group = groups[home[only]] if only in home else None
        joins = (
            group is not None
            and is_light(op, heaviest)
            and group[-1].name == only
            and readers[only] == 1
            and only not in crossing
            and len(group) <= _LONGEST_TAIL
        )
        if joins and group is not None and only is not None:
            group.append(op)
            home[op.name] = home[only]
        else:
            home[op.name] = len(groups)
            groups.append([op])
    return [Node(tuple(group), _inputs(group, home, i)) for i, group in enumerate(groups)]


def _inputs(group: list[OpPlacement], home: dict[str, int], own: int) -> tuple[int, ...]:
    return tuple(sorted({home[name] for op in group for name in op.inputs if name in home and home[name] < own}))


def layers(nodes: list[Node]) -> list[list[int]]:
    """Node positions by depth; nodes that read nothing stand just before their first reader."""
    depth: list[int] = []
    for node in nodes:
        depth.append(1 + max((depth[i] for i in node.inputs), default=-1))
    first: dict[int, int] = {}
    for i, node in enumerate(nodes):
        for source in node.inputs:
            first[source] = min(first.get(source, depth[i]), depth[i])
    for i, node in enumerate(nodes):
        if not node.inputs and i in first:
            depth[i] = first[i] - 1
    out: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for i, layer in enumerate(depth):
        out[layer].append(i)
    return [layer for layer in out if layer]


def choose_scale(nodes: list[Node], columns: list[list[int]], heaviest: float) -> Scale:
    """Sizes by the number of boxes; a map of one line has its gaps widened until it fills the page."""
    few = len(columns) <= 6 and len(nodes) <= 9
    scale = ROOMY if few else MEDIUM if len(nodes) <= 40 else COMPACT
    gaps = len(columns) - 1
    filled = sum(max(node_width(nodes[i], scale, is_light(nodes[i].ops[0], heaviest)) for i in c) for c in columns)
    room = WIDTH - LEFT - RIGHT - filled
    if gaps < 1 or room < scale.gap * gaps:
        return scale
    return replace(scale, gap=min(room / gaps, 1.8 * scale.gap))


def node_width(node: Node, scale: Scale, light: bool) -> float:
    """The leading box and the sheets behind it; a box that leads with a light operator is narrow."""
    return (_NARROW if light else scale.box) + scale.sheet * (len(node.ops) - 1)


def seat(
    nodes: list[Node], columns: list[list[int]], scale: Scale, heaviest: float
) -> tuple[dict[int, Seat], list[Line]]:
    """Seats of all nodes, and the lines they fill."""
    widths = [node_width(node, scale, is_light(node.ops[0], heaviest)) for node in nodes]
    seats: dict[int, Seat] = {}
    lines: list[Line] = []
    for row in _wrap(columns, widths, scale):
        tallest = max(len(column) for column in row)
        fused = scale.names_fused and any(len(nodes[i].ops) > 1 for column in row for i in column)
        cell = PILL + (scale.labels + fused) * LINE_HEIGHT + 8
        one = scale.height if tallest == 1 else scale.height * 0.58
        height = tallest * (one + cell)
        edges: list[tuple[float, float]] = []
        x = LEFT
        for position, column in enumerate(row):
            wide = max(widths[i] for i in column)
            share = height / len(column)
            box = min(scale.height, share - cell)
            for place, i in enumerate(_by_inputs(column, nodes, seats)):
                y = place * share + (share - box - cell) / 2 + PILL
                seats[i] = Seat(len(lines), position, x, y, widths[i], box)
            edges.append((x, x + wide))
            x += wide + scale.gap
        lines.append(Line(tuple(edges), height))
    return seats, lines


def _wrap(columns: list[list[int]], widths: list[float], scale: Scale) -> list[list[list[int]]]:
    rows: list[list[list[int]]] = []
    used = WIDTH
    for column in columns:
        wide = max(widths[i] for i in column)
        if used + wide > WIDTH - RIGHT - LEFT:
            rows.append([])
            used = 0.0
        rows[-1].append(column)
        used += wide + scale.gap
    return rows


def _by_inputs(column: list[int], nodes: list[Node], seats: dict[int, Seat]) -> list[int]:
    """Nodes of one column ordered by the mean height of what they read, so that fewer edges cross."""

    def mean(i: int) -> float:
        heights = [seats[s].y + seats[s].height / 2 for s in nodes[i].inputs if s in seats]
        return sum(heights) / len(heights) if heights else 0.0

    return sorted(column, key=lambda i: (mean(i), i))
