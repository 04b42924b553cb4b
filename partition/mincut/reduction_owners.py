"""Who adds partial sums (fold), once every block has its machine: region by region, where it costs least.

A region that some machines make in parts and some read is best completed on a machine that does both. Among equally
good machines the one that has completed least so far is taken, so that no single network card has it all
(reduce-scatter).
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ..dataflow.cut import PlacedBox
from ..ir.box import Box, Ints, fuse
from .blocks import Blocks
from .csr_graph import Floats


def reduction_owners(blocks: Blocks, machine_of: Sequence[int]) -> dict[str, list[PlacedBox]]:
    """Choose, for each operator whose reductions are cut, boxes of its output and the machine that completes each.

    machine_of: the machine of each block, as a partitioner returns it.
    """
    machine = np.asarray(machine_of, dtype=np.int64)
    count = int(machine.max(initial=0)) + 1
    completed = np.zeros(count)
    out: dict[str, list[PlacedBox]] = {}
    for op in blocks.graph.ops:
        info = blocks.graph.tensors[op.outputs[0]]
        if len(op.outputs) != 1 or blocks.find_makers(info)[1] == 1:
            continue
        maker_grid, parts = blocks.find_makers(info)
        readers = blocks.readers.get(info.name, [])
        cells = blocks.cells(info, readers, maker_grid)
        box = maker_grid.find_holders(cells)
        makers = machine[blocks.first[op.name] + np.add.outer(box * parts, np.arange(parts))]
        makes, reads = np.zeros((2, cells.count, count), dtype=np.int64)
        makes[np.arange(cells.count)[:, None], makers] = 1
        for reader, operand in readers:
            met = blocks.find_reads(reader, operand, cells)
            reads[met.cells, machine[met.blocks]] = 1
        out[op.name] = _owners_of_regions(list(cells.boxes()), cells.volumes, makes, reads, completed)
    return out


def _owners_of_regions(
    boxes: Sequence[Box], points: Ints, makes: Ints, reads: Ints, completed: Floats
) -> list[PlacedBox]:
    """Regions and their owners, merged where the same machines have parts, so that each sends one piece."""
    groups: dict[tuple[int, bytes], list[Box]] = defaultdict(list)
    for box, size, makers, readers in zip(boxes, points.tolist(), makes, reads, strict=True):
        best = np.flatnonzero(makers + readers == (makers + readers).max())
        machine = int(best[completed[best].argmin()])
        completed[machine] += size
        groups[machine, makers.tobytes()].append(box)
    return [(box, machine) for (machine, _), group in sorted(groups.items()) for box in fuse(group)]
