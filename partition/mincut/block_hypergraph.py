"""`BlockHypergraph`: the hypergraph of blocks, whose connectivity is exactly the bytes that a cut sends forward.

The model is that of Catalyurek and Aykanat, "Hypergraph-partitioning-based decomposition for parallel sparse-matrix
vector multiplication" (IEEE TPDS 1999, section 3):

- expand: there is a net for each region of a tensor, with the block that makes it and those that read it as pins.
  Regions with equal pins are one net, so halos are exact. - fold: the blocks that make partial sums of a region share a
  net with the block where the sum is completed; an expand net leads from there to the readers. - A region is sent to
  each other machine once, so a net that spans m machines costs (m - 1) times its bytes (the connectivity metric, km1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..ir.box import Ints
from ..ir.graph import STATE_KINDS, TensorInfo
from .block_grid import check_graph_size
from .blocks import Blocks, find_anchors
from .csr_graph import CsrGraph, Floats, build_csr_graph


@dataclass(frozen=True)
class BlockHypergraph:
    """n vertices, m nets, p pins. flops: [n]; starts: [m + 1], where the pins of a net begin; pins: [p]; bytes: [m].

    home: [n], the vertex that each must stay with, itself if it is free.
    """

    flops: Floats
    starts: Ints
    pins: Ints
    bytes: Floats
    anchor: Ints

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
    def stars(self) -> CsrGraph:
        """A graph that approximates it: an edge from the first pin of every net to each of the others."""
        hub = np.repeat(self.pins[self.starts[:-1]], np.diff(self.starts))
        return build_csr_graph(self.flops, hub, self.pins, self.bytes[self.net_of])

    def contract(self) -> tuple["BlockHypergraph", Ints]:
        """Merge every vertex into its anchor; returns the hypergraph and the number of each vertex in it, [n]."""
        kept, number = np.unique(self.anchor, return_inverse=True)
        number = number.reshape(-1).astype(np.int64)
        flops = np.bincount(number, weights=self.flops, minlength=len(kept)).astype(np.float64)
        return build_hypergraph(flops, self.net_of, number[self.pins], self.bytes), number


def build_hypergraph(flops: Floats, net: Ints, pin: Ints, size: Floats, anchor: Ints | None = None) -> BlockHypergraph:
    """Build the hypergraph in which net[i] has pin[i].

    Repeated pins count once, nets with equal pins become one, and nets of one pin are left out.

    size: bytes of each net.
    """
    count = len(flops)
    key = np.sort(net * count + pin)  # np.unique of many distinct numbers takes several times as long
    net, pin = np.divmod(key[np.append(True, key[1:] != key[:-1])] if len(key) else key, max(1, count))
    number, begin, pins = np.unique(net, return_index=True, return_counts=True)
    row = np.repeat(np.arange(len(number)), pins)
    mark = np.add.reduceat(_hash_pins(pin), begin) if len(pin) else pin
    _, first, same = np.unique(mark, return_index=True, return_inverse=True)
    bytes = np.bincount(same.reshape(-1), weights=size[number], minlength=len(first)).astype(np.float64)
    kept = np.flatnonzero((pins[first] > 1) & (bytes > 0))
    kept = kept[np.argsort(first[kept])]
    chosen = np.full(len(number), -1, dtype=np.int64)
    chosen[first[kept]] = np.arange(len(kept))
    used = chosen[row] >= 0
    starts = np.concatenate([[0], np.cumsum(pins[first[kept]])]).astype(np.int64)
    free = np.arange(count, dtype=np.int64)
    return BlockHypergraph(
        np.asarray(flops, dtype=np.float64), starts, pin[used], bytes[kept], free if anchor is None else anchor
    )


def _hash_pins(pin: Ints) -> npt.NDArray[np.uint64]:
    """Hash each number to 64 bits (splitmix64); the sum of the hashes identifies a set of pins."""
    x = (pin.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def build_block_hypergraph(blocks: Blocks) -> BlockHypergraph:
    """Build the hypergraph of blocks 0..n-1. Raises Infeasible (E405) where there are too many blocks or pins.

    A sum is completed where it is read first, if its first reader reads every point of it once; else where one of its
    parts is made.
    """
    check_graph_size(0, blocks=len(blocks))
    net, pin, size = ([np.zeros(0, dtype=np.int64)] for _ in range(3))
    before = room = 0
    for info in blocks.graph.tensors.values():
        if info.kind != "value" and info.kind not in STATE_KINDS:
            continue
        nets_here, pins_here, bytes_here = _tensor_nets(blocks, info)
        net.append(nets_here + before)
        pin.append(pins_here)
        size.append(bytes_here)
        before += len(bytes_here)
        room += len(pins_here)
        check_graph_size(room)
    sizes = np.concatenate(size).astype(np.float64)
    return build_hypergraph(blocks.flops, np.concatenate(net), np.concatenate(pin), sizes, find_anchors(blocks))


def _tensor_nets(blocks: Blocks, info: TensorInfo) -> tuple[Ints, Ints, Ints]:
    """The nets of a tensor, from 0, and their pins; and the bytes of each net."""
    readers = blocks.readers.get(info.name, [])
    maker_grid, parts = blocks.find_makers(info) if info.kind == "value" else (None, 0)
    cells = blocks.cells(info, readers, *([maker_grid] if maker_grid else []))
    met = [blocks.find_reads(op, operand, cells) for op, operand in readers]
    net: Ints = np.concatenate([np.zeros(0, dtype=np.int64), *(m.cells for m in met)])
    pin: Ints = np.concatenate([np.zeros(0, dtype=np.int64), *(m.blocks for m in met)])
    size: Ints = np.ceil(cells.volumes * info.travelling_bytes).astype(np.int64)
    if maker_grid is None:
        return net, pin, size
    every = np.arange(cells.count, dtype=np.int64)
    maker = blocks.first[blocks.producers[info.name].name] + maker_grid.find_holders(cells) * parts
    if parts == 1:
        return np.concatenate([net, every]), np.concatenate([pin, maker]), size
    owner = maker
    if met and (np.bincount(met[0].cells, minlength=cells.count) == 1).all():
        owner = met[0].blocks[np.argsort(met[0].cells)]
    makers: Ints = np.add.outer(maker, np.arange(parts)).reshape(-1)
    fold = every + cells.count
    net = np.concatenate([net, every, np.repeat(fold, parts), fold])
    return net, np.concatenate([pin, owner, makers, owner]), np.concatenate([size, size])
