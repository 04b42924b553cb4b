"""Estimates what candidates cost on a graph that repeats blocks, by graphs with a few of them.

A candidate for the whole graph is made and simulated on shorter ones: on one with a few of each of the repeated blocks,
and for each of them on one with some more. Every further block costs as much as these do, so

    step(n) = step(m) + (n - m) / added * (step(m + added) - step(m)),

and so for the bytes. Machines have as much of their memory as there is of the tensors, so what does not fit in full
does not fit there; what comes nearest to it is simulated in full where it nearly fits, or nothing else does. A
candidate with stages has as many blocks in each of them, so `added` is the number of stages. A candidate of METIS cuts
every graph in its own way; what it costs on the shortest is taken to grow with the FLOPs.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace

from ..ir.box import volume
from ..ir.graph import Graph
from .candidates import count_stages, cuts_like_blocks_alike, propose_candidates
from .plan import Candidate, Figures, PlanningProblem, Rejected, ScoredPlan
from .plan_scorer import PlanScorer
from .repeated_blocks import find_repeated_blocks, shorten_graph

MIN_WORK = 4_000  # operators times machines; what is less is planned in seconds as it is
SAME = 0.01  # relative difference of estimates that are taken for the same
MAX_SHARE = 0.5  # of the operators, in all shorter graphs together
NEAREST = 2  # candidates that are simulated whole though by their estimates they do not fit
MEMORY_ERROR = 0.05  # relative, of what an estimate says that a candidate needs
KEPT = 3  # blocks of the shortest graph at least; layouts near its ends are unlike those in its midst


@dataclass(frozen=True)
class Estimate:
    """What a candidate costs on the whole graph, about, by one with `blocks` `of` its repeated blocks."""

    name: str
    figures: Figures
    blocks: int
    of: int

    def is_like(self, other: "Estimate") -> bool:
        """Whether it costs as much as another, so that one of both will do."""
        pairs = zip(astuple(self.figures), astuple(other.figures), strict=True)
        return all(math.isclose(own, others, rel_tol=SAME) for own, others in pairs)

    def reject(self) -> Rejected:
        """Say what it would cost, and by what that is known."""
        costs = f"about {self.figures.step_s:.3g} s/step" if self.figures.fits else "too little memory"
        return Rejected(self.name, f"{costs}, by {self.blocks} of its {self.of} repeated blocks")


def find_nearest(too_large: Sequence[Estimate], room: float) -> list[Estimate]:
    """Of candidates that do not fit by their estimates, find those that come nearest to it, no two of them alike.

    room: bytes that none needs more than, but for what estimates are wrong by.
    """
    nearest = list[Estimate]()
    for estimate in sorted(too_large, key=lambda one: one.figures.memory_bytes)[:NEAREST]:
        nearly = estimate.figures.memory_bytes <= (1 + MEMORY_ERROR) * room
        if nearly and not any(estimate.is_like(other) for other in nearest):
            nearest.append(estimate)
    return nearest


class CandidateEstimates:
    """Estimates the candidates of a problem by shorter graphs.

    Attributes:
        rejected: candidates that cannot be made on the shortest graph.
        in_full: names of candidates that no shorter graph stands for.
    """

    def __init__(self, problem: PlanningProblem, *, prefix: str) -> None:
        self._problem, self._prefix = problem, prefix
        self.rejected: list[Rejected] = []
        self.in_full: list[str] = []

    def estimate_all(self, names: Iterable[str]) -> list[Estimate]:
        """Return the estimates of those of the candidates that can be estimated."""
        by_stages: dict[int, list[str]] = defaultdict(list)
        for name in names:
            by_stages[count_stages(name, len(self._problem.cluster))].append(name)
        estimates = list[Estimate]()
        for stages, group in sorted(by_stages.items()):
            shorter = shorten_problem(self._problem, stages) if stages else None
            if shorter is None:
                self.in_full += group
            else:
                estimates += self._estimate(shorter, set(group))
        return estimates

    def _estimate(self, shorter: "ShorterProblems", names: set[str]) -> Iterator[Estimate]:
        first = self._score_all(shorter.shortest, names)
        alike = {name for name in first if cuts_like_blocks_alike(name)}
        more = [(factor, self._score_all(problem, alike)) for factor, problem in shorter.more]
        for name, plan in first.items():
            if name in alike and not all(name in plans for _, plans in more):
                self.rejected.append(Rejected(name, "it cannot be made on a model with more of its repeated blocks"))
                continue
            figures = plan.figures
            if name in alike:
                for factor, plans in more:
                    figures = figures.extrapolate(plan.figures, plans[name].figures, factor)
            else:
                figures = figures.scale(shorter.flops)
            yield Estimate(name, figures, shorter.kept, shorter.blocks)

    def _score_all(self, problem: PlanningProblem, names: set[str]) -> dict[str, ScoredPlan]:
        scorer, plans = PlanScorer(problem.graph, problem.micro_batches), dict[str, ScoredPlan]()
        for candidate in propose_candidates(problem, scorer.costs, prefix=self._prefix, names=names):
            if isinstance(candidate, Candidate):
                plan = scorer.score(candidate.name, candidate.cut, problem.cluster)
                plans[candidate.name] = plan.without_details()
            elif all(candidate.name != other.name for other in self.rejected):
                self.rejected.append(candidate)
        return plans


@dataclass(frozen=True)
class ShorterProblems:
    """A problem on shorter graphs.

    more: for each kind of block the problem with more of these, and how often that much more is missing in the
    shortest. kept, blocks: blocks in the shortest and in the whole graph. flops: those of the whole graph, as a
    multiple of those of the shortest.
    """

    shortest: PlanningProblem
    more: tuple[tuple[float, PlanningProblem], ...]
    kept: int
    blocks: int
    flops: float


def shorten_problem(problem: PlanningProblem, stages: int) -> ShorterProblems | None:
    """Return the problem on shorter graphs; None where it is small, or nothing repeats often enough.

    stages: how many blocks more a graph needs for one more in each stage.
    """
    graph = problem.graph
    if len(graph.ops) * len(problem.cluster) <= MIN_WORK or problem.pins:
        return None
    base = stages * -(-KEPT // stages)
    repeated = [blocks for blocks in find_repeated_blocks(graph) if blocks.count > base + stages]
    kept = dict.fromkeys(repeated, base)
    graphs = [shorten_graph(graph, kept), *(shorten_graph(graph, {**kept, some: base + stages}) for some in repeated)]
    if not repeated or any(one is None for one in graphs):
        return None
    shorter = [one for one in graphs if one is not None]
    if sum(len(one.ops) for one in shorter) > MAX_SHARE * len(graph.ops):
        return None
    first, *more = [_with_graph(problem, one) for one in shorter]
    factors = [(blocks.count - base) / stages for blocks in repeated]
    blocks = sum(some.count for some in repeated)
    flops = sum(op.flops for op in graph.ops) / max(1.0, sum(op.flops for op in first.graph.ops))
    return ShorterProblems(first, tuple(zip(factors, more, strict=True)), base * len(repeated), blocks, flops)


def _with_graph(problem: PlanningProblem, graph: Graph) -> PlanningProblem:
    """Return the problem on a shorter graph, on machines with less room for a model, as that is smaller."""
    share = _tensor_bytes(graph) / _tensor_bytes(problem.graph)
    rooms = [max(0, machine.memory_bytes - machine.process_bytes) for machine in problem.cluster.machines]
    machines = tuple(
        replace(machine, memory_bytes=min(machine.memory_bytes, machine.process_bytes + int(room * share)))
        for machine, room in zip(problem.cluster.machines, rooms, strict=True)
    )
    return replace(problem, graph=graph, cluster=replace(problem.cluster, machines=machines))


def _tensor_bytes(graph: Graph) -> int:
    return sum(volume(info.box) * info.element_bytes for info in graph.tensors.values())
