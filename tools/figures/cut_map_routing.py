"""How the edges of the cut map run: straight to the next column, else along lanes under the lines and down the gutter.

All edges that leave one node share one lane a line, so a tensor with many readers looks like one wire with many taps.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .cut_map_layout import Line, Node, Scale, Seat
from .svg import Point

_LANE = 8.0
_SPACE = 14.0
_GUTTER_FIRST, _GUTTER_STEP, _GUTTER_SLOTS = 8.0, 5.0, 5
_PORT = 0.84


@dataclass(frozen=True)
class Routes:
    """tops: where each line begins. paths: corner points per (source, target); None where the edge runs straight."""

    tops: list[float]
    height: float
    paths: dict[tuple[int, int], list[Point] | None]


def route(nodes: list[Node], seats: dict[int, Seat], lines: list[Line], scale: Scale) -> Routes:
    """Lanes for all edges, the places of the lines between which they run, and the corner points of each edge."""
    readers: dict[int, list[int]] = {}
    for target, node in enumerate(nodes):
        for source in node.inputs:
            readers.setdefault(source, []).append(target)
    far = {s: [t for t in ts if not _straight(seats[s], seats[t])] for s, ts in sorted(readers.items())}
    far = {source: targets for source, targets in far.items() if targets}
    gutter = _gutter_slots(far, seats)
    exits = {source: _exit(source, far, seats, lines, scale) for source in far}
    entries = {t: _entry(t, far, seats, lines) for t in {t for ts in far.values() for t in ts}}
    lanes, counts = _lanes(far, seats, exits, entries, gutter, len(lines))
    tops, height = _tops(lines, counts)
    paths: dict[tuple[int, int], list[Point] | None] = {(s, t): None for s, ts in readers.items() for t in ts}
    for source, targets in far.items():
        for target in targets:
            across = _across(
                source, target, seats=seats, lines=lines, tops=tops, lanes=lanes, gutter=gutter.get(source)
            )
            paths[source, target] = _corners(
                seats[source], seats[target], tops=tops, out=exits[source], entry=entries[target], across=across
            )
    return Routes(tops, height, paths)


def _straight(source: Seat, target: Seat) -> bool:
    return source.line == target.line and target.column == source.column + 1


def _slots(spans: Iterable[tuple[int, float, float]]) -> dict[int, int]:
    """The lowest free slot for each (key, from, to); spans that overlap get different slots."""
    taken: list[list[tuple[float, float]]] = []
    out: dict[int, int] = {}
    for key, start, stop in sorted(spans, key=lambda span: (span[1], -span[2], span[0])):
        fits = (i for i, slot in enumerate(taken) if all(stop < a or b < start for a, b in slot))
        slot = next(fits, len(taken))
        if slot == len(taken):
            taken.append([])
        taken[slot].append((start, stop))
        out[key] = slot
    return out


def _gutter_slots(far: dict[int, list[int]], seats: dict[int, Seat]) -> dict[int, float]:
    """x in the left gutter of each source whose edges change lines."""
    spans = []
    for source, targets in far.items():
        reached = [seats[t].line for t in targets if seats[t].line != seats[source].line]
        if reached:
            spans.append((source, float(seats[source].line), float(max(reached))))
    return {key: _GUTTER_FIRST + _GUTTER_STEP * (slot % _GUTTER_SLOTS) for key, slot in _slots(spans).items()}


def _exit(source: int, far: dict[int, list[int]], seats: dict[int, Seat], lines: list[Line], scale: Scale) -> float:
    """x where the source's edges go down, right of its column."""
    seat = seats[source]
    peers = [s for s in far if (seats[s].line, seats[s].column) == (seat.line, seat.column)]
    return lines[seat.line].columns[seat.column][1] + scale.gap * 0.5 + 5 * (peers.index(source) % 3)


def _entry(target: int, far: dict[int, list[int]], seats: dict[int, Seat], lines: list[Line]) -> float:
    """x where edges come up, left of the target's column."""
    seat = seats[target]
    reached = sorted({t for ts in far.values() for t in ts})
    peers = [t for t in reached if (seats[t].line, seats[t].column) == (seat.line, seat.column)]
    return lines[seat.line].columns[seat.column][0] - 13 - 5 * (peers.index(target) % 3)


def _lanes(
    far: dict[int, list[int]],
    seats: dict[int, Seat],
    exits: dict[int, float],
    entries: dict[int, float],
    gutter: dict[int, float],
    lines: int,
) -> tuple[dict[tuple[int, int], int], list[int]]:
    """The lane of each (line, source), and how many lanes each line needs."""
    extent: dict[int, list[tuple[int, float, float]]] = {line: [] for line in range(lines)}
    for source, targets in far.items():
        own = seats[source].line
        stops: dict[int, list[float]] = {own: [exits[source]]}
        for target in targets:
            line = seats[target].line
            if line == own:
                stops[own].append(entries[target])
            else:
                stops[own].append(gutter[source])
            if line != own and seats[target].column > 0:
                stops.setdefault(line, [gutter[source]]).append(entries[target])
        for line, xs in stops.items():
            extent[line].append((source, min(xs), max(xs)))
    lanes: dict[tuple[int, int], int] = {}
    counts = []
    for line, spans in extent.items():
        slots = _slots(spans)
        lanes.update({(line, source): slot for source, slot in slots.items()})
        counts.append(max(slots.values(), default=-1) + 1)
    return lanes, counts


def _tops(lines: list[Line], counts: list[int]) -> tuple[list[float], float]:
    tops = []
    y = 0.0
    for line, count in zip(lines, counts, strict=True):
        tops.append(y)
        y += line.height + count * _LANE + _SPACE
    return tops, y - _SPACE + _LANE if lines else 0.0


def _across(
    source: int,
    target: int,
    *,
    seats: dict[int, Seat],
    lines: list[Line],
    tops: list[float],
    lanes: dict[tuple[int, int], int],
    gutter: float | None,
) -> list[tuple[float | None, float]]:
    """The level parts of an edge as (x to go to, or None for the entry, y); a change of lines may need two."""

    def level(line: int) -> float:
        return tops[line] + lines[line].height + _LANE * (lanes[line, source] + 0.5)

    own, other = seats[source].line, seats[target].line
    if own == other:
        return [(None, level(own))]
    if seats[target].column == 0:
        return [(gutter, level(own))]
    return [(gutter, level(own)), (None, level(other))]


def _corners(
    source: Seat, target: Seat, *, tops: list[float], out: float, entry: float, across: list[tuple[float | None, float]]
) -> list[Point]:
    start = tops[source.line] + source.y + _PORT * source.height
    stop = tops[target.line] + target.y + _PORT * target.height
    points: list[Point] = [(source.x + source.width, start), (out, start)]
    x = out
    for goal, level in across:
        points.append((x, level))
        x = entry if goal is None else goal
        points.append((x, level))
    points += [(x, stop), (target.x, stop)]
    return points
