"""`PlanScorer`: lowers and simulates cuts of one graph, each cut once."""

from collections.abc import Sequence
from dataclasses import replace

from ..cluster.cost_model import CostModel
from ..cluster.machines import Cluster
from ..dataflow.cut import Cut
from ..dataflow.dataflow import Dataflow
from ..dataflow.lowering import lower_cut
from ..dataflow.memory_model import MemoryUse, measure_memory_use, recompute_to_fit
from ..dataflow.pipeline_depth import count_in_flight
from ..dataflow.simulator import simulate
from ..ir.graph import Graph
from .plan import ScoredPlan


class PlanScorer:
    """Scores cuts of a graph.

    Attributes:
        costs: the cost model of the graph.
    """

    def __init__(self, graph: Graph, micro_batches: int) -> None:
        self._graph, self._micro_batches = graph, micro_batches
        self._known: list[tuple[Cut, ScoredPlan]] = []
        self.costs = CostModel(graph.tensors)

    def score(self, name: str, cut: Cut, cluster: Cluster) -> ScoredPlan:
        """Return what a candidate costs, which is found once for each cut."""
        for other, plan in self._known:
            if plan.cluster == cluster and other == cut:
                return replace(plan, name=name)
        plan = self.simulate(name, cut, cluster)
        self._known.append((cut, plan.without_details()))
        return plan

    def detail(self, plan: ScoredPlan) -> ScoredPlan:
        """Return a plan with its dataflow and timeline, simulated once more where they were dropped."""
        return plan if plan.lowered is not None else self.simulate(plan.name, plan.cut, plan.cluster)

    def simulate(self, name: str, cut: Cut, cluster: Cluster) -> ScoredPlan:
        """Lower a cut, recompute where memory asks for it, and simulate a step."""
        lowered = lower_cut(self._graph, cut)
        uses = measure_memory_use(lowered)
        dataflow = recompute_to_fit(lowered, cluster, count_in_flight(lowered, self._micro_batches), uses)
        return self.simulate_lowered(name, dataflow, cluster, uses)

    def simulate_lowered(
        self, name: str, dataflow: Dataflow, cluster: Cluster, uses: Sequence[MemoryUse] | None = None
    ) -> ScoredPlan:
        """Simulate a step of a cut that is lowered already. uses: what its machines hold, if it is known."""
        simulation = simulate(dataflow, cluster, micro_batches=self._micro_batches, costs=self.costs, uses=uses)
        total, speed = sum(simulation.flops), sum(m.flops_per_s for m in cluster.machines)
        even = [total * m.flops_per_s / speed for m in cluster.machines]  # share of the work by speed
        min_load = min((flops / e for flops, e in zip(simulation.flops, even, strict=True) if e), default=1.0)
        sent = dataflow.bytes_forward
        return ScoredPlan(name, self._graph, dataflow.cut, cluster, simulation, sent, min_load, dataflow)
