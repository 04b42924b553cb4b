"""Where the parts of a sum are added up, once every block has its machine: region by region, where it costs least.

A region that is made in parts on some machines and read by some is best completed on a machine that does both; among
those that serve equally well, the one that completes least so far, so that no network card has it all (reduce-scatter).
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from .csr_graph import Floats
from ..ir.box import Box, Ints, fuse
from ..dataflow.cut import Placed
from .blocks import Blocks


def folds(found: Blocks, machine_of: Sequence[int]) -> dict[str, list[Placed]]:
    """For each operator whose sums are cut: the boxes of its output, and the machine that completes each.

    machine_of: of each block, as a partitioner gives it.
    """
    machine = np.asarray(machine_of, dtype=np.int64)
    count = int(machine.max(initial=0)) + 1
    completed = np.zeros(count)
    out: dict[str, list[Placed]] = {}
    for op in found.graph.ops:
        info = found.graph.tensors[op.outputs[0]]
        if len(op.outputs) != 1 or found.made(info)[1] == 1:
            continue
        made, parts = found.made(info)
        readers = found.readers.get(info.name, [])
        cells = found.cells(info, readers, made)
        box = made.holding(cells)
        makers = machine[found.first[op.name] + np.add.outer(box * parts, np.arange(parts))]
        makes, reads = np.zeros((2, cells.count, count), dtype=np.int64)
        makes[np.arange(cells.count)[:, None], makers] = 1
        for reader, operand in readers:
            met = found.meetings(reader, operand, cells)
            reads[met.cells, machine[met.blocks]] = 1
        out[op.name] = _placed(list(cells.boxes()), cells.volumes(), makes, reads, completed)
    return out


def _placed(boxes: Sequence[Box], points: Ints, makes: Ints, reads: Ints, completed: Floats) -> list[Placed]:
    """Regions and who completes them, fused where the same machines have parts: each then sends one piece."""
    together: dict[tuple[int, bytes], list[Box]] = defaultdict(list)
    for box, size, made, read in zip(boxes, points.tolist(), makes, reads, strict=True):
        best = np.flatnonzero(made + read == (made + read).max())
        machine = int(best[completed[best].argmin()])
        completed[machine] += size
        together[machine, made.tobytes()].append(box)
    return [(box, machine) for (machine, _), group in sorted(together.items()) for box in fuse(group)]
