"""Cuts to test with: the planner's candidates, without their scores."""

from collections.abc import Iterator

from cutset.partition.cluster.machines import Cluster
from cutset.partition.ir.graph import Graph
from cutset.partition.planner.candidates import propose_candidates
from cutset.partition.planner.plan import Candidate, PlanningProblem


def candidates(graph: Graph, cluster: Cluster, *, seed: int = 0) -> Iterator[Candidate]:
    """All candidates that use every machine of a cluster, in a fixed order."""
    proposed = propose_candidates(PlanningProblem(graph, cluster, seed))
    return (proposal for proposal in proposed if isinstance(proposal, Candidate))
