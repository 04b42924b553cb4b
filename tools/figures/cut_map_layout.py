"""Where the boxes of the cut map stand: light operators join the one they follow; layers wrap like lines of text."""

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
_MAX_TAIL = 7
_NARROW = 20.0


@dataclass(frozen=True)
class MapNode:
    """One box of the map: a leading operator and the light ones fused to it. inputs: positions of its inputs."""

    ops: tuple[OpPlacement, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class MapScale:
    """Sizes for few, some and many boxes.

    sheet: how far a fused operator stands out behind its leader; labels: lines of text under a box, and one more for
    fused operators if `names_fused`, and one for what boxes receive if `names_received`; pairs: limit on the single
    threads of a crossing; ring: radius.
    """

    box: float
    height: float
    gap: float
    sheet: float
    labels: int
    names_fused: bool
    pairs: int
    ring: float
    names_received: bool = False


ROOMY = MapScale(box=116, height=150, gap=92, sheet=6, labels=3, names_fused=True, pairs=12, ring=4)
MEDIUM = MapScale(box=74, height=112, gap=70, sheet=4, labels=3, names_fused=True, pairs=12, ring=3.2)
COMPACT = MapScale(box=42, height=60, gap=44, sheet=3, labels=2, names_fused=False, pairs=2, ring=3.2)


@dataclass(frozen=True)
class Seat:
    """Where a node stands: row, column within the row, x, y from the top of the row, width and height."""

    row: int
    column: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class LayoutRow:
    """One row of columns, as a line of text in a page. columns: left and right edge of each; height: without lanes."""

    columns: tuple[tuple[float, float], ...]
    height: float


def is_light(op: OpPlacement, heaviest: float) -> bool:
    """Whether the operator does next to no work, as activations, views and dropout do."""
    return op.flops < _LIGHT_SHARE * heaviest and not _HEAVY.search(op.op)


def fuse_light_operators(placement: Placement) -> list[MapNode]:
    """Return the nodes in order of execution; a light operator joins the chain before it if no bytes cross there."""
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
            and len(group) <= _MAX_TAIL
        )
        if joins and group is not None and only is not None:
            group.append(op)
            home[op.name] = home[only]
        else:
            home[op.name] = len(groups)
            groups.append([op])
    return [MapNode(tuple(group), _find_inputs(group, home, i)) for i, group in enumerate(groups)]


def _find_inputs(group: list[OpPlacement], home: dict[str, int], own: int) -> tuple[int, ...]:
    return tuple(sorted({home[name] for op in group for name in op.inputs if name in home and home[name] < own}))


def group_by_depth(nodes: list[MapNode]) -> list[list[int]]:
    """Return node positions by depth; nodes that read nothing stand just before their first reader."""
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


def choose_scale(nodes: list[MapNode], columns: list[list[int]], heaviest: float) -> MapScale:
    """Choose sizes by the number of boxes; the gaps of a map of one row are widened until it fills the page."""
    few = len(columns) <= 6 and len(nodes) <= 9
    scale = ROOMY if few else MEDIUM if len(nodes) <= 40 else COMPACT
    gaps = len(columns) - 1
    filled = sum(max(measure_node(nodes[i], scale, is_light(nodes[i].ops[0], heaviest)) for i in c) for c in columns)
    room = WIDTH - LEFT - RIGHT - filled
    if gaps < 1 or room < scale.gap * gaps:
        return scale
    return replace(scale, gap=min(room / gaps, 1.8 * scale.gap))


def measure_node(node: MapNode, scale: MapScale, light: bool) -> float:
    """Return the width of a leading box and the sheets behind it; a box led by a light operator is narrow."""
    return (_NARROW if light else scale.box) + scale.sheet * (len(node.ops) - 1)


def place_nodes(
    nodes: list[MapNode], columns: list[list[int]], scale: MapScale, heaviest: float
) -> tuple[dict[int, Seat], list[LayoutRow]]:
    """Return the seats of all nodes, and the rows they fill."""
    widths = [measure_node(node, scale, is_light(node.ops[0], heaviest)) for node in nodes]
    seats: dict[int, Seat] = {}
    rows: list[LayoutRow] = []
    for wrapped in _wrap(columns, widths, scale):
        tallest = max(len(column) for column in wrapped)
        fused = scale.names_fused and any(len(nodes[i].ops) > 1 for column in wrapped for i in column)
        cell = PILL + (scale.labels + fused + scale.names_received) * LINE_HEIGHT + 8
        one = scale.height if tallest == 1 else scale.height * 0.58
        height = tallest * (one + cell)
        edges: list[tuple[float, float]] = []
        x = LEFT
        for position, column in enumerate(wrapped):
            wide = max(widths[i] for i in column)
            share = height / len(column)
            box = min(scale.height, share - cell)
            for place, i in enumerate(_order_by_inputs(column, nodes, seats)):
                y = place * share + (share - box - cell) / 2 + PILL
                seats[i] = Seat(len(rows), position, x, y, widths[i], box)
            edges.append((x, x + wide))
            x += wide + scale.gap
        rows.append(LayoutRow(tuple(edges), height))
    return seats, rows


def _wrap(columns: list[list[int]], widths: list[float], scale: MapScale) -> list[list[list[int]]]:
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


def _order_by_inputs(column: list[int], nodes: list[MapNode], seats: dict[int, Seat]) -> list[int]:
    """Order the nodes of one column by the mean height of what they read, so that fewer edges cross."""

    def mean(i: int) -> float:
        heights = [seats[s].y + seats[s].height / 2 for s in nodes[i].inputs if s in seats]
        return sum(heights) / len(heights) if heights else 0.0

    return sorted(column, key=lambda i: (mean(i), i))
