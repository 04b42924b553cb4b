"""How the edges of the cut map run: straight to the next column, else along lanes under the rows and down the gutter.

All edges that leave one node share one lane a row, so a tensor with many readers looks like one wire with many taps.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .cut_map_fusing import MapNode
from .cut_map_layout import LayoutRow, MapScale, Seat
from .svg import Point

_LANE = 8.0
_SPACE = 14.0
_GUTTER_FIRST, _GUTTER_STEP, _GUTTER_SLOTS = 8.0, 5.0, 5
_PORT = 0.84


@dataclass(frozen=True)
class Routes:
    """tops: where each row begins. paths: corner points per (source, target); None where the edge runs straight."""

    tops: list[float]
    height: float
    paths: dict[tuple[int, int], list[Point] | None]


def route_edges(nodes: list[MapNode], seats: dict[int, Seat], rows: list[LayoutRow], scale: MapScale) -> Routes:
    """Lanes for all edges, the places of the rows between which they run, and the corner points of each edge."""
    readers: dict[int, list[int]] = {}
    for target, node in enumerate(nodes):
        for source in node.inputs:
            readers.setdefault(source, []).append(target)
    far = {s: [t for t in ts if not _is_straight(seats[s], seats[t])] for s, ts in sorted(readers.items())}
    far = {source: targets for source, targets in far.items() if targets}
    gutter = _place_gutters(far, seats)
    exits = {source: _place_exit(source, far, seats, rows, scale) for source in far}
    entries = {t: _place_entry(t, far, seats, rows) for t in {t for ts in far.values() for t in ts}}
    lanes, counts = _assign_lanes(far, seats, exits, entries, gutter, len(rows))
    tops, height = _place_rows(rows, counts)
    paths: dict[tuple[int, int], list[Point] | None] = {(s, t): None for s, ts in readers.items() for t in ts}
    for source, targets in far.items():
        for target in targets:
            across = _list_levels(
                source, target, seats=seats, rows=rows, tops=tops, lanes=lanes, gutter=gutter.get(source)
            )
            paths[source, target] = _list_corners(
                seats[source], seats[target], tops=tops, out=exits[source], entry=entries[target], across=across
            )
    return Routes(tops, height, paths)


def _is_straight(source: Seat, target: Seat) -> bool:
    return source.row == target.row and target.column == source.column + 1


def _assign_slots(spans: Iterable[tuple[int, float, float]]) -> dict[int, int]:
    """The lowest free slot for each (key, from, to); spans that overlap get different slots."""
    slots: list[list[tuple[float, float]]] = []
    out: dict[int, int] = {}
    for key, start, stop in sorted(spans, key=lambda span: (span[1], -span[2], span[0])):
        fits = (i for i, slot in enumerate(slots) if all(stop < a or b < start for a, b in slot))
        slot = next(fits, len(slots))
        if slot == len(slots):
            slots.append([])
        slots[slot].append((start, stop))
        out[key] = slot
    return out


def _place_gutters(far: dict[int, list[int]], seats: dict[int, Seat]) -> dict[int, float]:
    """x in the left gutter of each source whose edges change rows."""
    spans = []
    for source, targets in far.items():
        reached = [seats[t].row for t in targets if seats[t].row != seats[source].row]
        if reached:
            spans.append((source, float(seats[source].row), float(max(reached))))
    return {key: _GUTTER_FIRST + _GUTTER_STEP * (slot % _GUTTER_SLOTS) for key, slot in _assign_slots(spans).items()}


def _place_exit(
    source: int, far: dict[int, list[int]], seats: dict[int, Seat], rows: list[LayoutRow], scale: MapScale
) -> float:
    """x where the source's edges go down, right of its column."""
    seat = seats[source]
    peers = [s for s in far if (seats[s].row, seats[s].column) == (seat.row, seat.column)]
    return rows[seat.row].columns[seat.column][1] + scale.gap * 0.5 + 5 * (peers.index(source) % 3)


def _place_entry(target: int, far: dict[int, list[int]], seats: dict[int, Seat], rows: list[LayoutRow]) -> float:
    """x where edges come up, left of the target's column."""
    seat = seats[target]
    reached = sorted({t for ts in far.values() for t in ts})
    peers = [t for t in reached if (seats[t].row, seats[t].column) == (seat.row, seat.column)]
    return rows[seat.row].columns[seat.column][0] - 13 - 5 * (peers.index(target) % 3)


def _assign_lanes(
    far: dict[int, list[int]],
    seats: dict[int, Seat],
    exits: dict[int, float],
    entries: dict[int, float],
    gutter: dict[int, float],
    rows: int,
) -> tuple[dict[tuple[int, int], int], list[int]]:
    """The lane of each (row, source), and how many lanes each row needs."""
    extent: dict[int, list[tuple[int, float, float]]] = {row: [] for row in range(rows)}
    for source, targets in far.items():
        own = seats[source].row
        stops: dict[int, list[float]] = {own: [exits[source]]}
        for target in targets:
            row = seats[target].row
            if row == own:
                stops[own].append(entries[target])
            else:
                stops[own].append(gutter[source])
            if row != own and seats[target].column > 0:
                stops.setdefault(row, [gutter[source]]).append(entries[target])
        for row, xs in stops.items():
            extent[row].append((source, min(xs), max(xs)))
    lanes: dict[tuple[int, int], int] = {}
    counts = []
    for row, spans in extent.items():
        slots = _assign_slots(spans)
        lanes.update({(row, source): slot for source, slot in slots.items()})
        counts.append(max(slots.values(), default=-1) + 1)
    return lanes, counts


def _place_rows(rows: list[LayoutRow], counts: list[int]) -> tuple[list[float], float]:
    tops = []
    y = 0.0
    for row, count in zip(rows, counts, strict=True):
        tops.append(y)
        y += row.height + count * _LANE + _SPACE
    return tops, y - _SPACE + _LANE if rows else 0.0


def _list_levels(
    source: int,
    target: int,
    *,
    seats: dict[int, Seat],
    rows: list[LayoutRow],
    tops: list[float],
    lanes: dict[tuple[int, int], int],
    gutter: float | None,
) -> list[tuple[float | None, float]]:
    """The level parts of an edge as (x to go to, or None for the entry, y); a change of rows may need two."""

    def level(row: int) -> float:
        return tops[row] + rows[row].height + _LANE * (lanes[row, source] + 0.5)

    own, other = seats[source].row, seats[target].row
    if own == other:
        return [(None, level(own))]
    if seats[target].column == 0:
        return [(gutter, level(own))]
    return [(gutter, level(own)), (None, level(other))]


def _list_corners(
    source: Seat, target: Seat, *, tops: list[float], out: float, entry: float, across: list[tuple[float | None, float]]
) -> list[Point]:
    start = tops[source.row] + source.y + _PORT * source.height
    stop = tops[target.row] + target.y + _PORT * target.height
    points: list[Point] = [(source.x + source.width, start), (out, start)]
    x = out
    for goal, level in across:
        points.append((x, level))
        x = entry if goal is None else goal
        points.append((x, level))
    points += [(x, stop), (target.x, stop)]
    return points
