"""Where the boxes of the cut map stand: columns by depth, which wrap like lines of text. Labels keep to their column.

Between columns there are lines and nothing else, so that none runs through a label.
"""

from dataclasses import dataclass, replace

from .cut_map_fusing import MapNode, is_light, title_node
from .svg import measure_text

LEFT, RIGHT = 34.0, 32.0
PILL = 24.0
LINE_HEIGHT = 14.0

_LIGHT_BOX = 27.0
_MIN_LABEL = 64.0  # room for the bytes that cross, over a box


@dataclass(frozen=True)
class MapScale:
    """Sizes for few, some and many boxes, and for phones.

    room: the most that the labels of a column may widen it to; sheet: how far a fused operator stands out behind its
    leader; labels: lines of text under a box, and one more for fused operators if `names_fused`, and one for what boxes
    receive if `names_received`; pairs: limit on the single threads of a crossing; ring: radius.
    """

    box: float
    room: float
    height: float
    gap: float
    sheet: float
    labels: int
    names_fused: bool
    pairs: int
    ring: float
    width: float = 1120.0
    names_received: bool = False


ROOMY = MapScale(box=116, room=150, height=150, gap=80, sheet=6, labels=3, names_fused=True, pairs=12, ring=4)
MEDIUM = MapScale(box=74, room=104, height=112, gap=56, sheet=4, labels=3, names_fused=True, pairs=12, ring=3.2)
COMPACT = MapScale(box=42, room=92, height=60, gap=40, sheet=3, labels=2, names_fused=False, pairs=2, ring=3.2)
NARROW = MapScale(
    box=44, room=64, height=64, gap=28, sheet=3, labels=2, names_fused=False, pairs=2, ring=3.2, width=320.0
)


@dataclass(frozen=True)
class Seat:
    """Where a node stands: row, column within the row, x, y from the top of the row, width and height.

    end: the right edge of its column, beyond which there are lines and no labels.
    """

    row: int
    column: int
    x: float
    y: float
    width: float
    height: float
    end: float


@dataclass(frozen=True)
class LayoutRow:
    """One row of columns, as a line of text in a page. columns: left and right edge of each; height: without lanes."""

    columns: tuple[tuple[float, float], ...]
    height: float


def group_by_depth(nodes: list[MapNode]) -> list[list[int]]:
    """Return node positions by depth; nodes that read nothing stand just before their first reader.

    What neither reads nor is read stands last, a column each, which may wrap.
    """
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
    loose = [i for i, node in enumerate(nodes) if not node.inputs and i not in first]
    out: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for i, layer in enumerate(depth):
        if i not in loose:
            out[layer].append(i)
    return [layer for layer in out if layer] + [[i] for i in loose]


def choose_scale(nodes: list[MapNode], columns: list[list[int]], heaviest: float, *, narrow: bool = False) -> MapScale:
    """Choose sizes by the number of boxes; the gaps of a map of one row are widened until it fills the page."""
    few = len(columns) <= 6 and len(nodes) <= 9
    scale = NARROW if narrow else ROOMY if few else MEDIUM if len(nodes) <= 40 else COMPACT
    gaps = len(columns) - 1
    filled = sum(measure_column(column, nodes, scale, heaviest) for column in columns)
    room = scale.width - LEFT - RIGHT - filled
    if gaps < 1 or room < scale.gap * gaps:
        return scale
    return replace(scale, gap=min(room / gaps, 1.8 * scale.gap))


def measure_node(node: MapNode, scale: MapScale, light: bool) -> float:
    """Return the width of a leading box and the sheets behind it; a box led by a light operator is narrow."""
    return (_LIGHT_BOX if light else scale.box) + scale.sheet * (len(node.ops) - 1)


def measure_column(column: list[int], nodes: list[MapNode], scale: MapScale, heaviest: float) -> float:
    """Return the width of a column: that of its widest box, or of a label as far as there is room for it."""
    boxes = max(measure_node(nodes[i], scale, is_light(nodes[i].ops[0], heaviest)) for i in column)
    words = max(measure_text(title_node(nodes[i]), 12.5) for i in column) + 0.5
    return max(boxes, min(scale.room, max(words, _MIN_LABEL)))


def place_nodes(
    nodes: list[MapNode], columns: list[list[int]], scale: MapScale, heaviest: float
) -> tuple[dict[int, Seat], list[LayoutRow]]:
    """Return the seats of all nodes, and the rows they fill."""
    widths = [measure_node(node, scale, is_light(node.ops[0], heaviest)) for node in nodes]
    wide = [measure_column(column, nodes, scale, heaviest) for column in columns]
    seats: dict[int, Seat] = {}
    rows: list[LayoutRow] = []
    for wrapped in _wrap(wide, scale):
        tallest = max(len(columns[c]) for c in wrapped)
        fused = scale.names_fused and any(len(nodes[i].ops) > 1 for c in wrapped for i in columns[c])
        cell = PILL + (scale.labels + fused + scale.names_received) * LINE_HEIGHT + 12
        one = scale.height if tallest == 1 else scale.height * 0.58
        height = tallest * (one + cell)
        edges: list[tuple[float, float]] = []
        x = LEFT
        for position, c in enumerate(wrapped):
            column = columns[c]
            share = height / len(column)
            box = min(scale.height, share - cell)
            for place, i in enumerate(_order_by_inputs(column, nodes, seats)):
                y = place * share + (share - box - cell) / 2 + PILL
                seats[i] = Seat(len(rows), position, x, y, widths[i], box, x + wide[c])
            edges.append((x, x + wide[c]))
            x += wide[c] + scale.gap
        rows.append(LayoutRow(tuple(edges), height))
    return seats, rows


def _wrap(wide: list[float], scale: MapScale) -> list[list[int]]:
    """Return the columns of each row. wide: the width of each column."""
    rows: list[list[int]] = []
    used = scale.width
    for column, width in enumerate(wide):
        if used + width > scale.width - RIGHT - LEFT:
            rows.append([])
            used = 0.0
        rows[-1].append(column)
        used += width + scale.gap
    return rows


def _order_by_inputs(column: list[int], nodes: list[MapNode], seats: dict[int, Seat]) -> list[int]:
    """Order the nodes of one column by the mean height of what they read, so that fewer edges cross."""

    def mean(i: int) -> float:
        heights = [seats[s].y + seats[s].height / 2 for s in nodes[i].inputs if s in seats]
        return sum(heights) / len(heights) if heights else 0.0

    return sorted(column, key=lambda i: (mean(i), i))
