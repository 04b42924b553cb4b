"""Cuts on a mesh: every operator gets the layout that makes the sum of compute and traffic least, all of them together.

A layout's compute is that of its slowest machine. Between two operators travels what a machine needs and does not have;
where a sum is cut, its parts are added where they are read, if no two machines read the same, else a share at each
machine that has a part. Parameters that several machines read are sent before the step. So the search weighs data
parallelism, column and row parallelism, tiles of images and of weights against each other, operator by operator
(Jia et al., "Beyond data and model parallelism", MLSys 2019; Zheng et al., Alpa, OSDI 2022, section 4).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .box import volume
from .cluster import Cluster
from .cost import Costs
from .cut import Placed, overlapping
from .elimination import cheapest
from .graph import STATE_KINDS, Fixed, Follow, Graph, Op, Operand, Reading, TensorInfo, Window
from .mesh import Ints, Layout, Mesh, as_boxes, layouts, scattered

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Weights:
    """What a plan is to save: seconds, and what a byte on the network counts in seconds beyond its own time."""

    network: float = 1.0
    latency: float = 1.0


@dataclass(frozen=True)
class Choices:
    """The layouts an operator may have. p: layouts, m: machines of the cluster, l: loops, a: axes of the output.

    boxes: [p, m, l, 2]. made: what each machine has of the output once sums are complete, [p, m, a, 2]. parts: partial
    results that a point of the output has, [p]. partial: the box of the partial result, [p, m, a, 2].
    """

    op: Op
    mesh: Mesh
    layouts: tuple[Layout, ...]
    owners: tuple[Layout, ...]
    boxes: Ints
    made: Ints
    partial: Ints
    parts: Ints

    @property
    def active(self) -> Bools:
        """Machines that have a box: [p, m]."""
        return np.asarray((self.boxes[..., 1] > self.boxes[..., 0]).all(axis=-1) & self._in_layout())

    def placed(self, p: int) -> list[Placed]:
        """The boxes of one layout."""
        return as_boxes(self.boxes[p]) if self.layouts[p] else [(self.op.nest.box, self.mesh.machines[0])]

    def _in_layout(self) -> Bools:
        """Only the first machine of a mesh computes what is not cut, also where there is no loop to tell by."""
        out = np.zeros(self.boxes.shape[:2], dtype=bool)
        for p, layout in enumerate(self.layouts):
            out[p, list(self.mesh.machines) if layout else self.mesh.machines[0]] = True
        return out


def choices(op: Op, mesh: Mesh, output: TensorInfo) -> Choices:
    """All layouts of an operator on a mesh."""
    sizes = [loop.size for loop in op.nest.loops]
    rank = len(output.extents) if len(op.outputs) == 1 else 0
    summed = [i for i, loop in enumerate(op.nest.loops) if loop.kind == "reduction"]
    parallel = [i for i in range(rank) if op.nest.loops[i].size > 1]
    found = layouts(op.nest.loops, mesh.shape)
    cut = [any(loop in summed for _, loop in layout) for layout in found]
    owners = [
        scattered(mesh, sizes, layout, parallel=parallel, summed=summed) if partial else layout
        for layout, partial in zip(found, cut, strict=True)
    ]
    boxes = np.stack([mesh.boxes(sizes, layout) for layout in found])
    made = np.stack([mesh.boxes(sizes[:rank], owner) for owner in owners])
    ways = [int(np.prod([mesh.shape[d] for d, loop in layout if loop in summed])) for layout in found]
    return Choices(
        op, mesh, tuple(found), tuple(owners), boxes, made, boxes[:, :, :rank], np.array(ways, dtype=np.int64)
    )


def meshed(
    graph: Graph,
    cluster: Cluster,
    mesh_of: Callable[[Op], Mesh],
    *,
    weights: Weights = Weights(),
    costs: Costs | None = None,
) -> tuple[dict[str, Sequence[Placed]], dict[str, Sequence[Placed]]]:
    """Boxes and folds of the best layouts, each operator on the mesh that `mesh_of` gives it."""
    search = _Search(graph, cluster, mesh_of, weights, costs or Costs(graph.tensors))
    return search.solved()


class _Search:
    def __init__(
        self, graph: Graph, cluster: Cluster, mesh_of: Callable[[Op], Mesh], weights: Weights, costs: Costs
    ) -> None:
        self.graph, self.cluster, self.weights, self.costs = graph, cluster, weights, costs
        self.bandwidth = np.array([min(cluster.bandwidth_in(m), cluster.bandwidth_out(m)) for m in range(len(cluster))])
        self.options = [choices(op, mesh_of(op), graph.tensors[op.outputs[0]]) for op in graph.ops]
        self.position = {op.name: i for i, op in enumerate(graph.ops)}

    def solved(self) -> tuple[dict[str, Sequence[Placed]], dict[str, Sequence[Placed]]]:
        chosen = cheapest([self._alone(of) for of in self.options], self._pairs())
        boxes: dict[str, Sequence[Placed]] = {}
        folds: dict[str, Sequence[Placed]] = {}
        for i, (of, p) in enumerate(zip(self.options, chosen, strict=True)):
            boxes[of.op.name] = of.placed(p)
            if of.parts[p] > 1:
                folds[of.op.name] = self._fold(i, chosen)
        return boxes, folds

    # One operator ------------------------------------------------------------------------------------------------

    def _alone(self, of: Choices) -> Floats:
        """Compute of the slowest machine, and parameters on their way: seconds, [p]."""
        out = np.zeros(len(of.layouts))
        for p in range(len(of.layouts)):
            out[p] = max(
                sum(self.costs.seconds(of.op, box, self.cluster.machines[machine])) for box, machine in of.placed(p)
            )
        for operand in of.op.nest.operands:
            info = self.graph.tensors[operand.tensor]
            if info.kind in STATE_KINDS:
                out += self._shared(of, operand, info)
        return out

    def _shared(self, of: Choices, operand: Operand, info: TensorInfo) -> Floats:
        """A region of state that several machines read goes from its owner to the others, and its gradient returns."""
        need, reads = needed(of, operand, info)
        held = np.where(reads, _volume(need), 0)
        low = np.where(reads[..., None], need[..., 0], np.iinfo(np.int64).max).min(axis=1)
        high = np.where(reads[..., None], need[..., 1], 0).max(axis=1)
        extra = np.maximum(0, held.sum(axis=1) - np.prod(np.maximum(0, high - low), axis=-1)) * info.element_bytes
        busy = np.maximum(1, reads.sum(axis=1))
        return self._seconds(extra / busy, extra > 0, self.bandwidth.min(), info)

    # Two operators -----------------------------------------------------------------------------------------------

    def _pairs(self) -> dict[tuple[int, int], Floats]:
        out: dict[tuple[int, int], Floats] = {}
        alike = self._siblings()
        producers = self.graph.producers
        for j, reader in enumerate(self.options):
            for operand in reader.op.nest.operands:
                if self.graph.tensors[operand.tensor].kind != "value":
                    continue
                i = self.position[producers[operand.tensor]]
                cost = self._between(self.options[i], reader, operand) / alike[self._kind(reader.op, operand)]
                out[i, j] = out[i, j] + cost if (i, j) in out else cost
        return out

    def _siblings(self) -> Counter[tuple[str, str, str]]:
        """Readers of a tensor that are alike, as projections to queries, keys and values: it is sent to them once."""
        return Counter(self._kind(of.op, operand) for of in self.options for operand in of.op.nest.operands)

    def _kind(self, op: Op, operand: Operand) -> tuple[str, str, str]:
        return operand.tensor, op.target, operand.argument

    def _between(self, maker: Choices, reader: Choices, operand: Operand) -> Floats:
        """Seconds on the network between two operators, forward and back: [layouts of maker, layouts of reader]."""
        info = self.graph.tensors[operand.tensor]
        need, reads = needed(reader, operand, info)
        if len(maker.op.outputs) > 1:  # whole, on one machine
            whole = np.zeros((1, len(self.cluster), len(info.extents), 2), dtype=np.int64)
            whole[0, maker.mesh.machines[0], :, 1] = info.extents
            owners = np.zeros((1, len(self.cluster)), dtype=bool)
            owners[0, maker.mesh.machines[0]] = True
            made, has = whole, owners
        else:
            made, has = maker.made, owned(maker)
        expand = self._expand(made, has, need, reads, info)
        summed = maker.parts > 1
        if not summed.any():
            return expand
        fold = self._fold_seconds(maker, made, has, info)
        direct = self._direct(maker, need, reads, info)
        return np.where(summed[:, None], np.minimum(direct, expand + fold[:, None]), expand)

    def _expand(self, made: Ints, has: Bools, need: Ints, reads: Bools, info: TensorInfo) -> Floats:
        """From machines that have `made` [p, m, a, 2] to those that need `need` [q, m, a, 2]: [p, q]."""
        wanted = np.where(reads, _volume(need), 0)
        at_hand = np.where(has[:, None] & reads[None], _volume(_common(made[:, None], need[None])), 0)
        missing = (wanted[None] - at_hand) * info.element_bytes
        received = (missing / self.bandwidth).max(axis=2)
        sent = missing.sum(axis=2) / np.maximum(1, has.sum(axis=1))[:, None] / self.bandwidth.min()
        return self._weighed(np.maximum(received, sent), np.asarray(missing.any(axis=2)), info)

    def _fold_seconds(self, maker: Choices, made: Ints, has: Bools, info: TensorInfo) -> Floats:
        """From the parts of a sum to the machines that own a share each: [p]."""
        mine = np.where(maker.active & has, _volume(_common(maker.partial, made)), 0)
        arriving = (maker.parts[:, None] * np.where(has, _volume(made), 0) - mine) * info.element_bytes
        return self._weighed((arriving / self.bandwidth).max(axis=1), maker.parts > 1, info)

    def _direct(self, maker: Choices, need: Ints, reads: Bools, info: TensorInfo) -> Floats:
        """From the parts of a sum straight to its readers, where no two of them read the same point: [p, q]."""
        wanted = np.where(reads, _volume(need), 0)
        exact = _once(need, reads, info)
        mine = np.where(maker.active[:, None] & reads[None], _volume(_common(maker.partial[:, None], need[None])), 0)
        arriving = (maker.parts[:, None, None] * wanted[None] - mine) * info.element_bytes
        received = (arriving / self.bandwidth).max(axis=2)
        sent = arriving.sum(axis=2) / np.maximum(1, maker.active.sum(axis=1))[:, None] / self.bandwidth.min()
        out = self._weighed(np.maximum(received, sent), np.asarray(arriving.any(axis=2)), info)
        return np.where(exact[None], out, np.inf)

    def _seconds(self, size: Floats, crosses: Bools, bandwidth: float, info: TensorInfo) -> Floats:
        return self._weighed(size / bandwidth, crosses, info)

    def _weighed(self, seconds: Floats, crosses: Bools, info: TensorInfo) -> Floats:
        """Seconds of bytes and of a message, forward, and again backward where a gradient returns."""
        once = self.weights.network * seconds + np.where(crosses, self.weights.latency * self.cluster.latency_s, 0.0)
        return once * (2.0 if info.gradient else 1.0)

    # Sums --------------------------------------------------------------------------------------------------------

    def _fold(self, maker: int, chosen: Sequence[int]) -> list[Placed]:
        """Who adds the parts of a sum up: the only reader, where no two machines read the same; else a share each."""
        of, p = self.options[maker], chosen[maker]
        name = of.op.outputs[0]
        info = self.graph.tensors[name]
        best: tuple[float, list[Placed]] | None = None
        readers = [(j, o) for j, r in enumerate(self.options) for o in r.op.nest.operands if o.tensor == name]
        for j, operand in readers:
            reader = self.options[j]
            need, reads = needed(reader, operand, info)
            box, has = need[chosen[j]][None], reads[chosen[j]][None]
            if not _once(box, has, info)[0]:
                continue
            cost = float(self._direct(of, box, has, info)[p, 0]) + self._others(readers, chosen, box, has, info)
            if best is None or cost < best[0]:
                best = cost, _placed(box[0], has[0])
        made, has = of.made[p][None], owned(of)[p][None]
        cost = float(self._fold_seconds(of, of.made, owned(of), info)[p])
        cost += self._others(readers, chosen, made, has, info)
        return best[1] if best is not None and best[0] <= cost else _placed(made[0], has[0])

    def _others(
        self,
        readers: Sequence[tuple[int, Operand]],
        chosen: Sequence[int],
        made: Ints,
        has: Bools,
        info: TensorInfo,
    ) -> float:
        """Seconds from owners of a sum to all its readers."""
        total = 0.0
        for j, operand in readers:
            need, reads = needed(self.options[j], operand, info)
            total += float(self._expand(made, has, need[chosen[j]][None], reads[chosen[j]][None], info)[0, 0])
        return total


def owned(of: Choices) -> Bools:
    """Machines that have a part of the complete output: [p, m]."""
    if not of.made.shape[2]:
        out = np.zeros(of.boxes.shape[:2], dtype=bool)
        out[:, of.mesh.machines[0]] = True
        return out
    spread = (of.made[..., 1] > of.made[..., 0]).all(axis=-1)
    return np.asarray(spread)


def needed(of: Choices, operand: Operand, info: TensorInfo) -> tuple[Ints, Bools]:
    """What each machine reads of an operand, [q, m, a, 2], and whether it reads any, [q, m]."""
    boxes = of.boxes
    out = np.zeros((*boxes.shape[:2], len(operand.readings), 2), dtype=np.int64)
    for axis, (reading, extent) in enumerate(zip(operand.readings, info.extents, strict=True)):
        out[:, :, axis] = _interval(reading, of, extent)
    reads = of.active
    if operand.once:
        for i, loop in enumerate(of.op.nest.loops):
            if loop.kind == "reduction":
                reads = reads & (boxes[:, :, i, 0] == 0)
    return out, reads & (out[..., 1] > out[..., 0]).all(axis=-1)


def _interval(reading: Reading, of: Choices, extent: int) -> Ints:
    boxes = of.boxes
    match reading:
        case Follow(loop):
            return boxes[:, :, loop]
        case Window(loop, stride, offset, width, covers, divisor):
            low, high = boxes[:, :, loop, 0], boxes[:, :, loop, 1]
            start = np.maximum(0, (low * stride + offset) // divisor)
            stop = np.minimum(extent, ((high - 1) * stride + offset + width - 1) // divisor + 1)
            if covers:
                uncut = (low == 0) & (high == of.op.nest.loops[loop].size)
                start, stop = np.where(uncut, 0, start), np.where(uncut, extent, stop)
            return np.stack([start, stop], axis=-1)
        case Fixed(start_at, stop_at):
            return np.broadcast_to(np.array([start_at, stop_at]), (*boxes.shape[:2], 2))
        case _:
            return np.broadcast_to(np.array([0, extent]), (*boxes.shape[:2], 2))


def _common(a: Ints, b: Ints) -> Ints:
    return np.stack([np.maximum(a[..., 0], b[..., 0]), np.minimum(a[..., 1], b[..., 1])], axis=-1)


def _volume(boxes: Ints) -> Ints:
    """Points of each box; the last two axes are the box's."""
    return np.asarray(np.clip(boxes[..., 1] - boxes[..., 0], 0, None).prod(axis=-1))


def _once(need: Ints, reads: Bools, info: TensorInfo) -> Bools:
    """Whether every point of a tensor is read on exactly one machine: [q]."""
    complete = np.where(reads, _volume(need), 0).sum(axis=1) == volume(info.box)
    pairs = zip(complete.tolist(), need, reads, strict=True)
    return np.array([full and not overlapping([box for box, _ in _placed(boxes, has)]) for full, boxes, has in pairs])


def _placed(boxes: Ints, has: Bools) -> list[Placed]:
    return [(tuple((a, b) for a, b in boxes[m].tolist()), m) for m in np.flatnonzero(has).tolist()]


def grid(cluster: Cluster, machines: Sequence[int], shape: Sequence[int]) -> Mesh:
    """Machines of a cluster, in the order given, as a mesh."""
    speeds = tuple(cluster.machines[m].flops_per_s for m in machines)
    return Mesh(tuple(shape), tuple(machines), speeds, len(cluster))


def shapes(count: int) -> list[tuple[int, ...]]:
    """A line of machines, and every rectangle."""
    return [(count,), *((a, count // a) for a in range(2, int(count**0.5) + 1) if count % a == 0)]
