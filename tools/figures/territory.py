"""Territory: how one operator's boxes divide a rectangle, drawn along the one or two loops that are really cut."""

from itertools import pairwise
from math import prod

from ...partition.placement.placement_file import OpPlacement, Piece
from .svg import Rect

_MOST_CELLS = 20_000


def cut_loops(op: OpPlacement) -> list[int]:
    """Positions of the loops along which the operator's boxes differ."""
    return [i for i in range(len(op.loops)) if len({piece.box[i] for piece in op.boxes}) > 1]


def shares(op: OpPlacement) -> dict[int, float]:
    """The part of the operator's work on each machine; the parts add up to one."""
    volumes: dict[int, float] = {}
    for piece in op.boxes:
        volumes[piece.machine] = volumes.get(piece.machine, 0.0) + _volume(piece)
    total = sum(volumes.values())
    even = 1 / max(len(volumes), 1)
    return {machine: volume / total if total else even for machine, volume in sorted(volumes.items())}


def territory(op: OpPlacement, frame: Rect) -> dict[int, list[Rect]]:
    """Rectangles per machine inside `frame`: the first cut loop runs down, the second across."""
    loops = _drawn(op)
    if len(shares(op)) <= 1:
        return {piece.machine: [frame] for piece in op.boxes[:1]}
    cut = cut_loops(op)
    plain = 0 < len(cut) <= 2 and len({tuple(piece.box) for piece in op.boxes}) == len(op.boxes)
    if plain:
        return _pieces(op, loops, frame)
    if len(loops) == 2 and _cells(op, loops) <= _MOST_CELLS:
        return _mixed(op, loops, frame)
    return _stack(shares(op), frame)


def _volume(piece: Piece) -> float:
    return float(prod(max(stop - start, 0) for start, stop in piece.box))


def _drawn(op: OpPlacement) -> list[int]:
    """The one or two loops to draw: those with the most cuts, in the order of the nest."""
    cut = cut_loops(op)
    return sorted(sorted(cut, key=lambda i: -len({piece.box[i] for piece in op.boxes}))[:2])


def _pieces(op: OpPlacement, loops: list[int], frame: Rect) -> dict[int, list[Rect]]:
    out: dict[int, list[Rect]] = {}
    for piece in op.boxes:
        down = _portion(op, piece, loops[0])
        across = _portion(op, piece, loops[1]) if len(loops) > 1 else (0.0, 1.0)
        out.setdefault(piece.machine, []).append(_inside(frame, down, across))
    return dict(sorted(out.items()))


def _portion(op: OpPlacement, piece: Piece, loop: int) -> tuple[float, float]:
    size = max(op.loops[loop].size, 1)
    start, stop = piece.box[loop]
    return start / size, stop / size


def _inside(frame: Rect, down: tuple[float, float], across: tuple[float, float]) -> Rect:
    x, y, width, height = frame
    return (x + across[0] * width, y + down[0] * height, (across[1] - across[0]) * width, (down[1] - down[0]) * height)


def _edges(op: OpPlacement, loop: int) -> list[int]:
    return sorted({edge for piece in op.boxes for edge in piece.box[loop]})


def _cells(op: OpPlacement, loops: list[int]) -> int:
    return len(_edges(op, loops[0])) * len(_edges(op, loops[1])) * len(op.boxes)


def _mixed(op: OpPlacement, loops: list[int], frame: Rect) -> dict[int, list[Rect]]:
    """More loops are cut than can be drawn: machines that share a cell get strips of it by their parts of the work."""
    out: dict[int, list[Rect]] = {}
    sizes = [max(op.loops[loop].size, 1) for loop in loops]
    for top, bottom in pairwise(_edges(op, loops[0])):
        for left, right in pairwise(_edges(op, loops[1])):
            weights = _weights(op, loops, (top, left))
            total = sum(weights.values())
            at = left / sizes[1]
            for machine, weight in sorted(weights.items()):
                wide = (right - left) / sizes[1] * weight / total
                box = _inside(frame, (top / sizes[0], bottom / sizes[0]), (at, at + wide))
                out.setdefault(machine, []).append(box)
                at += wide
    return dict(sorted(out.items()))


def _weights(op: OpPlacement, loops: list[int], corner: tuple[int, int]) -> dict[int, float]:
    """Work per machine in the cell whose first corner this is."""
    weights: dict[int, float] = {}
    for piece in op.boxes:
        spans = [piece.box[loop] for loop in loops]
        if all(start <= at < stop for (start, stop), at in zip(spans, corner, strict=True)):
            others = [stop - start for i, (start, stop) in enumerate(piece.box) if i not in loops]
            weights[piece.machine] = weights.get(piece.machine, 0.0) + float(prod(others))
    return weights


def _stack(parts: dict[int, float], frame: Rect) -> dict[int, list[Rect]]:
    """One bar from top to bottom, each machine by its part of the work."""
    out: dict[int, list[Rect]] = {}
    at = 0.0
    for machine, part in parts.items():
        out[machine] = [_inside(frame, (at, at + part), (0.0, 1.0))]
        at += part
    return out
