"""Searches the layouts of all operators on a mesh together, minimising the sum of compute and traffic.

As in Alpa's intra-operator pass (Zheng et al., OSDI 2022, section 4; Jia et al., "Beyond data and model parallelism",
MLSys 2019), but solved by variable elimination in place of an integer program:

1. The variables are the operators, their options the layouts on the mesh (`LayoutSpace`).
2. The cost of a single operator is the compute of its slowest machine, and sending parameters that several machines
read.
3. The cost of a pair of operators is resharding: what a machine needs and does not have travels. Partial sums are added
   where they are read, if no two machines read the same, else a share at each machine that has a part.
4. Minimise the sum (variable_elimination.py), and give each partial sum its owners.

So data parallelism, column and row parallelism, tiles of images and of weights compete operator by operator.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..cluster.cost_model import CostModel
from ..cluster.hierarchy import find_hosts
from ..cluster.machines import Cluster, Machine
from ..dataflow.cut import PlacedBox
from ..dataflow.memory_model import is_view, state_bytes
from ..ir.box import whole
from ..ir.graph import STATE_KINDS, Graph, Op, Operand, TensorInfo
from .device_mesh import DeviceMesh
from .layout_space import Bools, LayoutSpace, Regions, input_regions, layout_space, output_regions
from .resharding_cost import EQUAL_WEIGHTS, Floats, LayoutTraffic, TrafficWeights
from .variable_elimination import minimise


def search_layouts(
    graph: Graph,
    cluster: Cluster,
    mesh_of: Callable[[Op], DeviceMesh],
    *,
    weights: TrafficWeights = EQUAL_WEIGHTS,
    costs: CostModel | None = None,
) -> tuple[dict[str, Sequence[PlacedBox]], dict[str, Sequence[PlacedBox]]]:
    """Find the best layouts, each operator on the mesh that `mesh_of` gives it; returns boxes and folds.

    weights: how seconds on the network count against seconds of compute. costs: the cost model of the graph, if there
    is one already.
    """
    return _Search(graph, cluster, mesh_of, weights, costs or CostModel(graph.tensors)).solve()


@dataclass(frozen=True)
class LayoutCosts:
    """What the best layouts on a mesh cost.

    seconds: of each operator, compute and the transfers that it waits for. state_bytes, value_bytes: what each machine
    of the cluster then holds of the state that the operator is the first to read, and of its results: [operator, m].
    """

    seconds: Floats
    state_bytes: Floats
    value_bytes: Floats


def find_layout_costs(graph: Graph, cluster: Cluster, mesh: DeviceMesh, *, costs: CostModel) -> LayoutCosts:
    """Return what each operator costs in the best layouts on a mesh."""
    return _Search(graph, cluster, lambda op: mesh, EQUAL_WEIGHTS, costs).find_costs()


class _Search:
    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        mesh_of: Callable[[Op], DeviceMesh],
        weights: TrafficWeights,
        costs: CostModel,
    ) -> None:
        self.graph, self.cluster, self.costs = graph, cluster, costs
        self.traffic = LayoutTraffic(cluster, weights)
        first: dict[tuple[int, DeviceMesh], int] = {}
        numbers = [(costs.like_operators.number(op), mesh_of(op)) for op in graph.ops]
        self.like = [first.setdefault(number, i) for i, number in enumerate(numbers)]  # the first that is like each
        self.options = list[LayoutSpace]()
        for op, like in zip(graph.ops, self.like, strict=True):
            known = self.options[like] if like < len(self.options) else None
            output = graph.tensors[op.outputs[0]]
            self.options.append(replace(known, op=op) if known else layout_space(op, mesh_of(op), output))
        first_alike: dict[Machine, int] = {}
        nameless = [replace(machine, name="", address="") for machine in cluster.machines]
        self.kinds = np.array([first_alike.setdefault(machine, n) for n, machine in enumerate(nameless)])
        self.position = {op.name: i for i, op in enumerate(graph.ops)}

    def find_costs(self) -> LayoutCosts:
        """Find the best layouts, and return what they cost."""
        alone, pairs = self._singles(), self._pairs()
        chosen = minimise(alone, pairs)
        seconds = np.array([float(costs[p]) for costs, p in zip(alone, chosen, strict=True)])
        for (i, j), costs in pairs.items():
            seconds[max(i, j)] += costs[chosen[i], chosen[j]]
        state, values = (np.zeros((len(chosen), len(self.cluster))) for _ in range(2))
        size_of, seen = state_bytes(self.graph), set[str]()
        for i, (of, p) in enumerate(zip(self.options, chosen, strict=True)):
            for name in of.op.outputs if not is_view(of.op, self.graph.tensors) else ():
                info = self.graph.tensors[name]
                each = info.element_bytes * (2 if info.gradient else 1)
                values[i] += output_regions(of[p], info).points[0] * each
            for operand in of.op.nest.operands:
                info = self.graph.tensors[operand.tensor]
                if info.name in size_of and info.name not in seen:
                    seen.add(info.name)
                    state[i] += input_regions(of[p], operand, info).points[0] * size_of[info.name]
        return LayoutCosts(seconds, state, values)

    def solve(self) -> tuple[dict[str, Sequence[PlacedBox]], dict[str, Sequence[PlacedBox]]]:
        chosen = minimise(self._singles(), self._pairs())
        boxes: dict[str, Sequence[PlacedBox]] = {}
        folds: dict[str, Sequence[PlacedBox]] = {}
        for i, (of, p) in enumerate(zip(self.options, chosen, strict=True)):
            boxes[of.op.name] = of.boxes_of(p)
            if of.parts[p] > 1:
                folds[of.op.name] = self._fold(i, chosen)
        return boxes, folds

    # One operator ------------------------------------------------------------------------------------------------

    def _singles(self) -> list[Floats]:
        """The costs of each operator alone; those of like ones are found once."""
        out = list[Floats]()
        for of, like in zip(self.options, self.like, strict=True):
            out.append(out[like] if like < len(out) else self._alone(of))
        return out

    def _alone(self, of: LayoutSpace) -> Floats:
        """Seconds of compute on the slowest machine and of sending parameters: [p]."""
        out, active = np.zeros(len(of.layouts)), of.active
        for p in range(len(of.layouts)):
            unlike = self._list_unlike_boxes(of, p, active[p])
            out[p] = max(sum(self.costs.seconds(of.op, box, self.cluster.machines[machine])) for box, machine in unlike)
        if of.op.nest.non_additive:
            out += self.traffic.exchange_summaries(of, self.graph.tensors[of.op.outputs[0]])
        for operand in of.op.nest.operands:
            info = self.graph.tensors[operand.tensor]
            if info.kind in STATE_KINDS:
                out += self.traffic.send_state(of, operand, info)
        return out

    def _list_unlike_boxes(self, of: LayoutSpace, p: int, active: Bools) -> list[PlacedBox]:
        """One box of each size on each kind of machine, in one layout. active: machines that have a box, [m]."""
        if not of.layouts[p]:
            return of.boxes_of(p)
        lengths = (of.boxes[p, active, :, 1] - of.boxes[p, active, :, 0]).tolist()
        rows = {(kind, *sizes) for kind, sizes in zip(self.kinds[active].tolist(), lengths, strict=True)}
        return [(whole(sizes), kind) for kind, *sizes in sorted(rows)]

    # Two operators -----------------------------------------------------------------------------------------------

    def _pairs(self) -> dict[tuple[int, int], Floats]:
        out: dict[tuple[int, int], Floats] = {}
        known: dict[tuple[int, int, int], Floats] = {}
        sibling_counts = self._count_siblings()
        producers = self.graph.producers
        for j, reader in enumerate(self.options):
            for at, operand in enumerate(reader.op.nest.operands):
                info = self.graph.tensors[operand.tensor]
                if info.kind != "value":
                    continue
                i = self.position[producers[operand.tensor]]
                alike = self.like[i], self.like[j], at
                if alike not in known:
                    known[alike] = self.traffic.between(self.options[i], reader, operand, info)
                cost = known[alike] / sibling_counts[self._kind(reader.op, operand)]
                out[i, j] = out[i, j] + cost if (i, j) in out else cost
        return out

    def _count_siblings(self) -> Counter[tuple[str, str, str]]:
        """Count equal readers of a tensor, as projections to queries, keys and values: it is sent to them once."""
        return Counter(self._kind(of.op, operand) for of in self.options for operand in of.op.nest.operands)

    def _kind(self, op: Op, operand: Operand) -> tuple[str, str, str]:
        return operand.tensor, op.target, operand.argument

    # Sums --------------------------------------------------------------------------------------------------------

    def _fold(self, maker: int, chosen: Sequence[int]) -> list[PlacedBox]:
        """Who adds partial sums: the readers, where no two machines read the same, else each machine a share."""
        of = self.options[maker][chosen[maker]]
        info = self.graph.tensors[of.op.outputs[0]]
        needs = [
            input_regions(reader[chosen[j]], operand, info)
            for j, reader in enumerate(self.options)
            for operand in reader.op.nest.operands
            if operand.tensor == info.name
        ]
        ways = [(float(self.traffic.direct(of, need, info)[0, 0]), need) for need in needs]
        ways.append((float(self.traffic.fold(of, info)[0]), of.complete))
        _, best = min(ways, key=lambda way: way[0] + self._onward(way[1], needs, info))
        return best.boxes_of(0)

    def _onward(self, owners: Regions, needs: Sequence[Regions], info: TensorInfo) -> float:
        """Seconds from owners of a sum to all its readers."""
        return sum(float(self.traffic.expand(owners, need, info)[0, 0]) for need in needs)


def mesh_of_machines(cluster: Cluster, machines: Sequence[int], shape: Sequence[int]) -> DeviceMesh:
    """Arrange machines of a cluster, in the order given, as a mesh."""
    speeds = tuple(cluster.machines[m].flops_per_s for m in machines)
    return DeviceMesh(tuple(shape), tuple(machines), speeds, len(cluster))


def mesh_shapes(count: int) -> list[tuple[int, ...]]:
    """The shapes of meshes of `count` machines: one dimension, and every rectangle."""
    return [(count,), *((a, count // a) for a in range(2, int(count**0.5) + 1) if count % a == 0)]


def mesh_shapes_of(cluster: Cluster) -> list[tuple[int, ...]]:
    """The shapes of meshes of all machines; where machines stand on several hosts, also every rectangle turned.

    Neighbours of a row are near, so it matters then which dimension is the longer.
    """
    shapes = mesh_shapes(len(cluster))
    return [*shapes, *((b, a) for a, b in shapes[1:] if a != b)] if len(find_hosts(cluster)) > 1 else shapes
