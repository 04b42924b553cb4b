"""`Nets`: the hypergraph of blocks, whose connectivity is exactly the bytes that a cut sends forward.

One net per region of a tensor, from the block that makes it to those that read it; regions of equal blocks are one net,
so halos are exact. A state is sent to each other machine once, so a net that spans m machines costs (m - 1) times its
bytes (km1; Catalyurek and Aykanat, "Hypergraph-partitioning-based decomposition", IEEE TPDS 1999). The parts of a sum
are joined to the block where the sum is completed, and that block to those that read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .csr_graph import Adjacency, Floats, adjacency
from ..ir.box import Ints
from ..ir.graph import STATE_KINDS, TensorInfo
from .block_grid import require_room
from .blocks import Blocks, homes


@dataclass(frozen=True)
class Nets:
    """n vertices, m nets, p pins. flops: [n]; starts: [m + 1], where the pins of a net begin; pins: [p]; bytes: [m].

    home: [n], the vertex that each is to stay with, itself if it is free.
    """

    flops: Floats
    starts: Ints
    pins: Ints
    bytes: Floats
    home: Ints

    def __len__(self) -> int:
        return len(self.flops)

    @cached_property
    def net_of(self) -> Ints:
        """The net that each pin belongs to: [p]."""
        return np.repeat(np.arange(len(self.bytes), dtype=np.int64), np.diff(self.starts))

    def sent_bytes(self, part_of: Ints | Sequence[int]) -> float:
        """Bytes of every net times the parts that it spans, less one."""
        part = np.asarray(part_of)[self.pins]
        spanned = np.unique(self.net_of * (int(part.max(initial=0)) + 1) + part)
        parts = np.bincount(spanned // (int(part.max(initial=0)) + 1), minlength=len(self.bytes))
        return float((self.bytes * (parts - 1)).sum())

    @cached_property
    def stars(self) -> Adjacency:
        """A graph that is like it: the first pin of every net joined to the others."""
        hub = np.repeat(self.pins[self.starts[:-1]], np.diff(self.starts))
        return adjacency(self.flops, hub, self.pins, self.bytes[self.net_of])

    def contracted(self) -> tuple["Nets", Ints]:
        """The hypergraph with every vertex merged into its home, and the number that each vertex has there: [n]."""
        kept, number = np.unique(self.home, return_inverse=True)
        number = number.reshape(-1).astype(np.int64)
        flops = np.bincount(number, weights=self.flops, minlength=len(kept)).astype(np.float64)
        return nets(flops, self.net_of, number[self.pins], self.bytes), number


def nets(flops: Floats, net: Ints, pin: Ints, size: Floats, home: Ints | None = None) -> Nets:
    """The hypergraph in which net[i] has pin[i]; pins are counted once, nets of the same pins are one, of one pin none.

    size: bytes of each net.
    """
    count = len(flops)
    key = np.sort(net * count + pin)  # np.unique of many distinct numbers takes several times as long
    net, pin = np.divmod(key[np.append(True, key[1:] != key[:-1])] if len(key) else key, max(1, count))
    number, begin, pins = np.unique(net, return_index=True, return_counts=True)
    row = np.repeat(np.arange(len(number)), pins)
    mark = np.add.reduceat(_mixed(pin), begin) if len(pin) else pin
    _, first, same = np.unique(mark, return_index=True, return_inverse=True)
    bytes = np.bincount(same.reshape(-1), weights=size[number], minlength=len(first)).astype(np.float64)
    kept = np.flatnonzero((pins[first] > 1) & (bytes > 0))
    kept = kept[np.argsort(first[kept])]
    chosen = np.full(len(number), -1, dtype=np.int64)
    chosen[first[kept]] = np.arange(len(kept))
    mine = chosen[row] >= 0
    starts = np.concatenate([[0], np.cumsum(pins[first[kept]])]).astype(np.int64)
    free = np.arange(count, dtype=np.int64)
    return Nets(np.asarray(flops, dtype=np.float64), starts, pin[mine], bytes[kept], free if home is None else home)


def _mixed(pin: Ints) -> npt.NDArray[np.uint64]:
    """64 well mixed bits of each number (splitmix64), whose sum tells one set of pins from another."""
    x = (pin.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def net_graph(found: Blocks) -> Nets:
    """The hypergraph of blocks 0..n-1. Raises Infeasible (E405) where there are too many blocks or pins.

    A sum is completed where it is read first, if its first reader reads every point of it once; else where one of its
    parts is made.
    """
    require_room(0, blocks=len(found))
    net, pin, size = ([np.zeros(0, dtype=np.int64)] for _ in range(3))
    before = room = 0
    for info in found.graph.tensors.values():
        if info.kind != "value" and info.kind not in STATE_KINDS:
            continue
        nets_here, pins_here, bytes_here = _regions(found, info)
        net.append(nets_here + before)
        pin.append(pins_here)
        size.append(bytes_here)
        before += len(bytes_here)
        room += len(pins_here)
        require_room(room)
    sizes = np.concatenate(size).astype(np.float64)
    return nets(found.flops, np.concatenate(net), np.concatenate(pin), sizes, homes(found))


def _regions(found: Blocks, info: TensorInfo) -> tuple[Ints, Ints, Ints]:
    """The nets of a tensor, from 0, and their pins; and the bytes of each net."""
    readers = found.readers.get(info.name, [])
    made, parts = found.made(info) if info.kind == "value" else (None, 0)
    cells = found.cells(info, readers, *([made] if made else []))
    met = [found.meetings(op, operand, cells) for op, operand in readers]
    net: Ints = np.concatenate([np.zeros(0, dtype=np.int64), *(m.cells for m in met)])
    pin: Ints = np.concatenate([np.zeros(0, dtype=np.int64), *(m.blocks for m in met)])
    size: Ints = cells.volumes() * info.element_bytes
    if made is None:
        return net, pin, size
    every = np.arange(cells.count, dtype=np.int64)
    maker = found.first[found.producers[info.name].name] + made.holding(cells) * parts
    if parts == 1:
        return np.concatenate([net, every]), np.concatenate([pin, maker]), size
    owner = maker
    if met and (np.bincount(met[0].cells, minlength=cells.count) == 1).all():
        owner = met[0].blocks[np.argsort(met[0].cells)]
    makers: Ints = np.add.outer(maker, np.arange(parts)).reshape(-1)
    fold = every + cells.count
    net = np.concatenate([net, every, np.repeat(fold, parts), fold])
    return net, np.concatenate([pin, owner, makers, owner]), np.concatenate([size, size])
