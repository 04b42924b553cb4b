"""Cuts on a mesh: every operator gets the layout that makes the sum of compute and traffic least, all of them together.

A layout's compute is that of its slowest machine. Between two operators travels what a machine needs and does not have;
where a sum is cut, its parts are added where they are read, if no two machines read the same, else a share at each
machine that has a part. Parameters that several machines read are sent before the step. So the search weighs data
parallelism, column and row parallelism, tiles of images and of weights against each other, operator by operator
(Jia et al., "Beyond data and model parallelism", MLSys 2019; Zheng et al., Alpa, OSDI 2022, section 4).
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from .layout_space import Choices, Regions, choices, needed
from ..cluster.machines import Cluster
from ..cluster.cost_model import Costs
from ..dataflow.cut import Placed
from .variable_elimination import cheapest
from ..ir.graph import STATE_KINDS, Graph, Op, Operand, TensorInfo
from .resharding_cost import EVEN, Floats, LayoutTraffic, Weights
from .device_mesh import Mesh


def meshed(
    graph: Graph,
    cluster: Cluster,
    mesh_of: Callable[[Op], Mesh],
    *,
    weights: Weights = EVEN,
    costs: Costs | None = None,
) -> tuple[dict[str, Sequence[Placed]], dict[str, Sequence[Placed]]]:
    """Boxes and folds of the best layouts, each operator on the mesh that `mesh_of` gives it.

    weights: what the network counts beside compute; costs: what boxes of the graph cost, where that is known already.
    """
    return _Search(graph, cluster, mesh_of, weights, costs or Costs(graph.tensors)).solved()


class _Search:
    def __init__(
        self, graph: Graph, cluster: Cluster, mesh_of: Callable[[Op], Mesh], weights: Weights, costs: Costs
    ) -> None:
        self.graph, self.cluster, self.costs = graph, cluster, costs
        self.traffic = LayoutTraffic(cluster, weights)
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
        if of.op.nest.joined:
            out += self.traffic.joined(of, self.graph.tensors[of.op.outputs[0]])
        for operand in of.op.nest.operands:
            info = self.graph.tensors[operand.tensor]
            if info.kind in STATE_KINDS:
                out += self.traffic.shared(of, operand, info)
        return out

    # Two operators -----------------------------------------------------------------------------------------------

    def _pairs(self) -> dict[tuple[int, int], Floats]:
        out: dict[tuple[int, int], Floats] = {}
        alike = self._siblings()
        producers = self.graph.producers
        for j, reader in enumerate(self.options):
            for operand in reader.op.nest.operands:
                info = self.graph.tensors[operand.tensor]
                if info.kind != "value":
                    continue
                i = self.position[producers[operand.tensor]]
                cost = self.traffic.between(self.options[i], reader, operand, info)
                cost = cost / alike[self._kind(reader.op, operand)]
                out[i, j] = out[i, j] + cost if (i, j) in out else cost
        return out

    def _siblings(self) -> Counter[tuple[str, str, str]]:
        """Readers of a tensor that are alike, as projections to queries, keys and values: it is sent to them once."""
        return Counter(self._kind(of.op, operand) for of in self.options for operand in of.op.nest.operands)

    def _kind(self, op: Op, operand: Operand) -> tuple[str, str, str]:
        return operand.tensor, op.target, operand.argument

    # Sums --------------------------------------------------------------------------------------------------------

    def _fold(self, maker: int, chosen: Sequence[int]) -> list[Placed]:
        """Who adds the parts of a sum up: its readers, where no two machines read the same, else a share each."""
        of = self.options[maker][chosen[maker]]
        info = self.graph.tensors[of.op.outputs[0]]
        needs = [
            needed(reader[chosen[j]], operand, info)
            for j, reader in enumerate(self.options)
            for operand in reader.op.nest.operands
            if operand.tensor == info.name
        ]
        ways = [(float(self.traffic.direct(of, need, info)[0, 0]), need) for need in needs]
        ways.append((float(self.traffic.fold(of, info)[0]), of.made))
        _, best = min(ways, key=lambda way: way[0] + self._onward(way[1], needs, info))
        return best.placed(0)

    def _onward(self, owners: Regions, needs: Sequence[Regions], info: TensorInfo) -> float:
        """Seconds from owners of a sum to all its readers."""
        return sum(float(self.traffic.expand(owners, need, info)[0, 0]) for need in needs)


def grid(cluster: Cluster, machines: Sequence[int], shape: Sequence[int]) -> Mesh:
    """Machines of a cluster, in the order given, as a mesh."""
    speeds = tuple(cluster.machines[m].flops_per_s for m in machines)
    return Mesh(tuple(shape), tuple(machines), speeds, len(cluster))


def shapes(count: int) -> list[tuple[int, ...]]:
    """A line of machines, and every rectangle."""
    return [(count,), *((a, count // a) for a in range(2, int(count**0.5) + 1) if count % a == 0)]
