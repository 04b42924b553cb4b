"""Owners of parameters that several machines read whole: each gets an equal part of every one (ZeRO's sharding).

Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020, section 5. By
default an owner is the reader that owns least so far, which leaves parts as unlike as the parameters are.
"""

from collections import defaultdict
from dataclasses import replace

from ..ir.box import split_evenly, volume
from .cut import Cut, PlacedBox
from .dataflow import Dataflow


def spread_owners(dataflow: Dataflow) -> Cut | None:
    """Return the cut with equal parts of parameters for all that read them whole; None where there are none such."""
    graph, held = dataflow.graph, defaultdict[str, dict[int, int]](dict)
    for piece in dataflow.pieces:
        by_machine = held[piece.tensor]
        by_machine[piece.machine] = by_machine.get(piece.machine, 0) + volume(piece.box)
    owners = dict(dataflow.cut.owners)
    changed = False
    for info in graph.parameters:
        readers = sorted(machine for machine, points in held[info.name].items() if points == volume(info.box))
        if len(readers) < 2 or len(readers) < len(held[info.name]) or info.name in graph.overwritten:
            continue
        size = max(info.extents, default=0)
        if size < len(readers):
            continue
        axis, parts = info.extents.index(size), split_evenly(size, len(readers))
        placed: list[PlacedBox] = [
            ((*info.box[:axis], part, *info.box[axis + 1 :]), machine)
            for part, machine in zip(parts, readers, strict=True)
        ]
        owners[info.name], changed = placed, True
    return replace(dataflow.cut, owners=owners, recomputed=frozenset()) if changed else None
