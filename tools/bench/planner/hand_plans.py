"""Plans that somebody would write down by hand for two fast machines and two slow ones: `cutset bench plan --unlike`.

Slices, stages, Megatron's pairs, tiles, batches, sharded owners, and what people combine them to. They are made of the
graph alone: no search, no simulator and no cost but the FLOPs of operators is asked. Machines are numbered by speed,
and shares of the work are equal, or by speed or memory.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ....partition.cluster.cost_model import class_of
from ....partition.cluster.machines import Cluster
from ....partition.dataflow.cut import Cut, PlacedBox, check_cut, colocate_overwriters, fuse_boxes
from ....partition.ir.box import volume
from ....partition.ir.graph import Graph, Op
from ....partition.mincut.cut_axes import spatial_axes
from ....partition.operators.sharding.cost_class import ATTENTION, CONTRACTION, CONVOLUTION, LOCAL

WEIGHTED = frozenset({CONTRACTION, CONVOLUTION, LOCAL})
NEAR = 0.08  # of all work, by which the edge of a stage is moved to where little crosses

Boxes = dict[str, Sequence[PlacedBox]]
Shares = Sequence[float]  # of each machine, 0 for one that has no part


@dataclass(frozen=True)
class HandPlan:
    """A cut over some machines of a cluster, by their numbers."""

    name: str
    machines: tuple[int, ...]
    cut: Cut


def write_hand_plans(graph: Graph, cluster: Cluster) -> Iterator[HandPlan]:
    """Yield the hand plans of a graph that apply to it, for four machines, the two fast ones first."""
    every, fast = (0, 1, 2, 3), (0, 1)
    speed, memory = [m.flops_per_s for m in cluster.machines], [float(m.memory_bytes) for m in cluster.machines]
    even = [1.0, 1.0, 1.0, 1.0]
    plans: list[tuple[str, tuple[int, ...], Boxes | None, Shares]] = [
        ("one fast machine", (0,), _run_whole(graph), ()),
        ("slices, even", every, _slice(graph, even), ()),
        ("slices by speed", every, _slice(graph, speed), ()),
        ("stages, even", every, _put_stages(graph, even), ()),
        ("stages by speed", every, _put_stages(graph, speed), ()),
        ("stages by memory", every, _put_stages(graph, memory), ()),
        ("two stages, fast machines", fast, _put_stages(graph, even[:2]), ()),
        ("Megatron, even", every, _pair(graph, even), ()),
        ("Megatron by speed", every, _pair(graph, speed), ()),
        ("Megatron, fast machines", fast, _pair(graph, even[:2]), ()),
        ("tiles by speed", every, _tile(graph, speed, columns=True), ()),
        ("strips by speed", every, _tile(graph, speed, columns=False), ()),
        ("data parallel, even", every, _divide_batch(graph, even), (1.0,)),
        ("data parallel by speed", every, _divide_batch(graph, speed), (1.0,)),
        ("data parallel, fast machines", fast, _divide_batch(graph, even[:2]), (1.0, 1.0)),
        ("ZeRO, even", every, _divide_batch(graph, even), even),
        ("ZeRO by speed", every, _divide_batch(graph, speed), speed),
        ("ZeRO, owners by memory", every, _divide_batch(graph, speed), memory),
        ("batch for filters, slices for the rest", every, _divide_filters(graph, speed), ()),
        ("two stages, each data parallel", every, _divide_stages(graph, speed, ((0, 1), (2, 3))), ()),
        ("two like stages, each data parallel", every, _divide_stages(graph, speed, ((0, 2), (1, 3))), ()),
    ]
    for name, machines, boxes, owners in plans:
        if boxes is not None:
            yield HandPlan(name, machines, _complete(graph, len(machines), boxes, owners))


def _complete(graph: Graph, count: int, boxes: Boxes, owners: Shares) -> Cut:
    cut = Cut(count, fuse_boxes(count, colocate_overwriters(graph, boxes)))
    if owners:
        cut = replace(cut, owners=_share_parameters(graph, owners))
    check_cut(graph, cut)
    return cut


def _share_parameters(graph: Graph, shares: Shares) -> Mapping[str, Sequence[PlacedBox]]:
    """Every parameter divided among its owners along its longest axis."""
    out = dict[str, Sequence[PlacedBox]]()
    for info in graph.parameters:
        if info.name in graph.overwritten or not info.extents:
            continue
        axis = info.extents.index(max(info.extents))
        out[info.name] = [
            ((*info.box[:axis], part, *info.box[axis + 1 :]), machine)
            for machine, part in _divide(info.extents[axis], shares)
        ]
    return out


# Parts -----------------------------------------------------------------------------------------------------------


def _divide(size: int, shares: Shares) -> list[tuple[int, tuple[int, int]]]:
    """(machine, interval) of parts in proportion to shares, rounded; machines whose part is empty have none."""
    edges = [round(size * total / sum(shares)) for total in itertools.accumulate(shares, initial=0.0)]
    return [(n, part) for n, part in enumerate(itertools.pairwise(edges)) if part[0] < part[1]]


def _cut_loop(op: Op, loop: int, shares: Shares) -> list[PlacedBox]:
    box = op.nest.box
    return [((*box[:loop], part, *box[loop + 1 :]), m) for m, part in _divide(op.nest.loops[loop].size, shares)]


def _find_loop(op: Op, axes: frozenset[int], least: int) -> int | None:
    """The first loop over one of these axes that can be cut in as many parts, one that makes output before a sum."""
    found = [i for i, x in enumerate(op.nest.loops) if x.axis in axes and x.kind != "fixed" and x.size >= least]
    return min(found, key=lambda i: (op.nest.loops[i].kind != "parallel", i), default=None)


def _cut_along_batch(graph: Graph, op: Op, shares: Shares) -> list[PlacedBox]:
    loop = _find_loop(op, frozenset(graph.batch_axes[:1]), 2)
    return [(op.nest.box, 0)] if loop is None else _cut_loop(op, loop, shares)


def _run_whole(graph: Graph) -> Boxes:
    return {op.name: [(op.nest.box, 0)] for op in graph.ops}


# Batches ---------------------------------------------------------------------------------------------------------


def _divide_batch(graph: Graph, shares: Shares) -> Boxes:
    return {op.name: _cut_along_batch(graph, op, shares) for op in graph.ops}


def _divide_filters(graph: Graph, shares: Shares) -> Boxes | None:
    """Batches where filters are, units of fully connected layers ("one weird trick", Krizhevsky, 2014)."""
    last = max((n for n, op in enumerate(graph.ops) if class_of(op) in (CONVOLUTION, LOCAL)), default=None)
    if last is None:
        return None
    slices = _slice(graph, shares)
    before = {op.name: _cut_along_batch(graph, op, shares) for op in graph.ops[: last + 1]}
    return None if slices is None else {**slices, **before}


def _divide_stages(graph: Graph, speed: Shares, groups: Sequence[tuple[int, ...]]) -> Boxes:
    """A stage for each group of machines, whose batch is divided among them by speed."""
    stage_of = _find_stages(graph, [sum(speed[m] for m in group) for group in groups])
    out = Boxes()
    for op, stage in zip(graph.ops, stage_of, strict=True):
        group = groups[stage]
        parts = _cut_along_batch(graph, op, [speed[m] for m in group])
        out[op.name] = [(box, group[n]) for box, n in parts]
    return out


# Stages ----------------------------------------------------------------------------------------------------------


def _put_stages(graph: Graph, shares: Shares) -> Boxes:
    return {op.name: [(op.nest.box, at)] for op, at in zip(graph.ops, _find_stages(graph, shares), strict=True)}


def _find_stages(graph: Graph, shares: Shares) -> list[int]:
    """The stage of every operator: FLOPs in proportion to shares, each edge moved a little to where least crosses."""
    done = [*itertools.accumulate((op.flops for op in graph.ops), initial=0.0)]
    crossing, edges = _count_crossing_bytes(graph), [0]
    for part in [*itertools.accumulate(shares)][:-1]:
        goal = done[-1] * part / sum(shares)
        places = range(min(edges[-1] + 1, len(graph.ops)), len(graph.ops) + 1)
        nearest = min(places, key=lambda n: abs(done[n] - goal))
        near = [n for n in places if abs(done[n] - goal) <= NEAR * done[-1]] or [nearest]
        edges.append(min(near, key=lambda n: (crossing[n], abs(done[n] - goal))))
    return [sum(1 for edge in edges[1:] if edge <= n) for n in range(len(graph.ops))]


def _count_crossing_bytes(graph: Graph) -> list[int]:
    """Bytes of values that are made before each place among the operators and read after it."""
    made = {name: n for n, op in enumerate(graph.ops) for name in op.outputs}
    last = {name: n for n, op in enumerate(graph.ops) for name in op.inputs}
    out = [0] * (len(graph.ops) + 1)
    for name, n in made.items():
        info = graph.tensors[name]
        for place in range(n + 1, last.get(name, n) + 1):
            out[place] += volume(info.box) * info.element_bytes
    return out


# Units -----------------------------------------------------------------------------------------------------------

ChooseLoop = Callable[[Op, int | None], int | None]  # of an operator with weights, and the axis its input is cut along


def _slice(graph: Graph, shares: Shares) -> Boxes | None:
    """The units that each layer makes."""
    return _cut_units(graph, shares, lambda op, before: _find_units(graph, op, len(shares), frozenset()), batch=False)


def _pair(graph: Graph, shares: Shares) -> Boxes | None:
    """A layer by the units it makes, the next by those it sums over (Megatron-LM, Shoeybi et al., 2019, section 3)."""
    heads = frozenset(
        loop.axis
        for op in graph.ops
        for loop in op.nest.loops
        if class_of(op) == ATTENTION and loop.kind == "parallel" and loop.axis not in graph.batch_axes
    )

    def choose(op: Op, before: int | None) -> int | None:
        summed = [i for i, loop in enumerate(op.nest.loops) if loop.kind == "reduction" and loop.axis == before]
        return summed[0] if summed else _find_units(graph, op, len(shares), heads)

    return _cut_units(graph, shares, choose, batch=True)


def _find_units(graph: Graph, op: Op, least: int, first: frozenset[int]) -> int | None:
    """The longest loop over units that an operator makes; one over an axis of `first`, if there is one."""
    held = {
        a for name in op.inputs if graph.tensors[name].kind == "parameter" for d in graph.tensors[name].axes for a in d
    }
    units = [
        i
        for i, loop in enumerate(op.nest.loops)
        if loop.kind == "parallel" and loop.axis in held and loop.axis not in graph.batch_axes and loop.size >= least
    ]
    return max(units, key=lambda i: (op.nest.loops[i].axis in first, op.nest.loops[i].size, -i), default=None)


def _cut_units(graph: Graph, shares: Shares, choose: ChooseLoop, *, batch: bool) -> Boxes | None:
    """Operators with weights as `choose` says, others as what they read; the rest whole, or along the batch."""
    cut_axis, out, some = dict[str, int](), Boxes(), False
    for op in graph.ops:
        before = next((cut_axis[name] for name in op.inputs if name in cut_axis), None)
        weighted = class_of(op) in WEIGHTED and any(graph.tensors[name].kind == "parameter" for name in op.inputs)
        loop = choose(op, before) if weighted else None
        some = some or loop is not None
        if loop is None and before is not None:
            loop = _find_loop(op, frozenset({before}), 2)
        if loop is None:
            out[op.name] = _cut_along_batch(graph, op, shares) if batch else [(op.nest.box, 0)]
            continue
        out[op.name] = _cut_loop(op, loop, shares)
        if op.nest.loops[loop].kind == "parallel":
            cut_axis.update(dict.fromkeys(op.outputs, op.nest.loops[loop].axis))
    return out if some else None


def _tile(graph: Graph, speed: Shares, *, columns: bool) -> Boxes | None:
    """Image rows by speed; or two rows, in each a fast and a slow machine. Layers without an image by their units."""
    space, slices = spatial_axes(graph), _slice(graph, speed)
    out, some = dict(slices or _run_whole(graph)), False
    for op in graph.ops:
        at = [
            i for i, loop in enumerate(op.nest.loops) if loop.axis in space and loop.kind != "fixed" and loop.size >= 4
        ]
        if not at or (columns and len(at) < 2):
            continue
        some = True
        if not columns:
            out[op.name] = _cut_loop(op, at[0], speed)
            continue
        tiles = list[PlacedBox]()
        for row, (_, rows) in zip(((0, 2), (1, 3)), _divide(op.nest.loops[at[0]].size, (1.0, 1.0)), strict=True):
            for n, part in _divide(op.nest.loops[at[1]].size, [speed[m] for m in row]):
                box = list(op.nest.box)
                box[at[0]], box[at[1]] = rows, part
                tiles.append((tuple(box), row[n]))
        out[op.name] = tiles
    return out if some else None
