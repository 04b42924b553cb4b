"""Finds a plan: every candidate is lowered and simulated, and the best one that fits in memory wins.

1. Make the candidates for all machines and, where some may stay idle or must, for fewer of them (candidates.py).
2. Lower each to what every machine computes and sends, and simulate a step of it; of a large graph that repeats blocks
   only those that are best by estimates (estimates.py).
3. Where a plan that does not fit in memory is faster by far than all that do, try candidates for little memory, too.
4. Improve the best few by local search (local_search.py); while nothing fits in memory, those that come nearest to it.
5. Fill waits of the best few with gradients that nobody waits for (fill_waits.py).
6. Choose: plans that fit in memory and use every machine come first, then the objective decides.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ...errors import Infeasible, UsageError
from ..cluster.hierarchy import choose_large_machines, choose_machines, order_machines
from ..cluster.machines import Cluster, HeldBytes
from ..dataflow.cut import Cut, one_machine_cut
from ..dataflow.even_owners import spread_owners
from ..dataflow.fill_waits import fill_waits
from ..dataflow.memory_model import uncut_memory
from ..ir.garbage import leave_garbage
from ..ir.graph import Graph
from .candidates import candidate_names, max_machines, propose_candidates
from .estimates import CandidateEstimates, Estimate, find_nearest
from .local_search import MAX_INSTRUCTIONS, improve_cut
from .lower_bound import bound_step_seconds
from .pins import resolve_pins
from .plan import (
    DEFERRED_SUFFIX,
    EVEN_OWNERS_SUFFIX,
    LOCAL_SEARCH_SUFFIX,
    MEMORY,
    OBJECTIVES,
    TIME,
    TIME_TOLERANCE,
    Candidate,
    PlanningProblem,
    PlanningResult,
    Rank,
    Rejected,
    ScoredPlan,
    choose_best,
    describe_shortage,
)
from .plan_scorer import PlanScorer

LOCAL_SEARCH_STARTS = 2  # candidates that local search starts from
DEFERRING_PLANS, DEFERRING_ROUNDS = 4, 2  # whose waits are filled, and how often, as each time they are others
LOCAL_SEARCH_RANGE = 3.0  # times the best plan's seconds; worse candidates do not become the best
ROOM_WORTH = 1.5  # times as fast as all that fit is a plan that does not, where those for little memory are tried


@leave_garbage()
def find_plan(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    candidates: str = "",
    fewer: bool = False,
    objective: str = TIME,
    pins: Sequence[str] = (),
    micro_batches: int = 1,
) -> PlanningResult:
    """Score all candidates and choose the best; the arguments are those of `PlanningOptions`.

    The machines are taken in an order that does not depend on that in the cluster (`order_machines`), in which the plan
    and pins number them. Where no candidate uses every machine, some are left out, and the result says so. Raises
    UsageError where an option is wrong, Infeasible where there is no plan of the kind that is asked for, or none fits
    in memory.
    """
    _check_options(objective, micro_batches)
    ordered = cluster.select(order_machines(cluster))
    problem = PlanningProblem(graph, ordered, seed, micro_batches, resolve_pins(graph, ordered, pins))
    return _PlanSearch(problem, prefix=candidates, fewer=fewer, objective=objective).run()


def _check_options(objective: str, micro_batches: int) -> None:
    if objective not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise UsageError("E208", f"no objective {objective!r}; there are {known}", fix="--objective time")
    if micro_batches < 1:
        raise UsageError("E209", f"{micro_batches} micro-batches; a step has at least one", fix="--micro-batches 1")


class _PlanSearch:
    """One search for a plan. prefix: consider only candidates whose name begins so."""

    def __init__(self, problem: PlanningProblem, *, prefix: str, fewer: bool, objective: str) -> None:
        self.problem, self.prefix, self.fewer, self.objective = problem, prefix, fewer, objective
        self.scorer = PlanScorer(problem.graph, problem.micro_batches)
        self.problems: list[PlanningProblem] = []
        self.plans: list[ScoredPlan] = []
        self.rejected: list[Rejected] = []
        self.shortage = ""

    def run(self) -> PlanningResult:
        """Score everything, and choose."""
        cluster = self.problem.cluster
        one_machine = self._score_best_machine()
        if len(cluster) == 1:
            self.plans = [one_machine]
        else:
            self._score_all(one_machine)
        winner = choose_best(self.plans, self.objective, all_used=not self.fewer)
        if not winner.fits:
            raise describe_shortage(min(self.plans, key=lambda plan: plan.memory_pressure))
        if winner.lowered is None:  # another candidate has the same cut
            winner = self.scorer.simulate(winner.name, winner.cut, winner.cluster)
        found = winner, one_machine, tuple(self.plans), tuple(self.rejected)
        micro_batches = self.problem.micro_batches
        least_s = bound_step_seconds(self.problem.graph, cluster, self.scorer.costs, micro_batches=micro_batches)
        return PlanningResult(self.problem, self.objective, *found, self.shortage, least_s)

    def _rank(self, plan: ScoredPlan) -> Rank:
        return plan.rank(self.objective, all_used=not self.fewer)

    def _rank_by_excess(self, plan: ScoredPlan) -> tuple[bool, float, Rank]:
        """Plans that fit come first, then those that come nearest to it."""
        return (not plan.fits, plan.memory_excess, self._rank(plan))

    def _rank_by_memory(self, plan: ScoredPlan) -> Rank:
        return plan.rank(MEMORY, all_used=not self.fewer)

    def _score_all(self, one_machine: ScoredPlan) -> None:
        count = len(self.problem.cluster)
        self._score_candidates(self.problem, tight=True)
        pinned = sorted(set(self.problem.pins.values()))
        if self.fewer:
            most = min(count - 1, max_machines(self.problem.graph))
            for fewer in _smaller_counts(max(2, len(pinned)), most):
                self._score_fewer(fewer)
            if len(pinned) <= 1 and one_machine.name.startswith(self.prefix):
                self._score_single_machine(one_machine, pinned)
        elif not self.plans and not self.prefix:
            self._leave_machines_out(one_machine, pinned)
        self._require_plans()
        if not self.prefix:
            self._search_for_room()
            if any(plan.fits for plan in self.plans):
                self._improve_best()
                self._spread_owners(min(self.plans, key=self._rank))
                self._fill_waits()

    def _leave_machines_out(self, one_machine: ScoredPlan, pinned: Sequence[int]) -> None:
        """Where no plan uses all machines, score those for the most that any plan uses, one if need be."""
        count = len(self.problem.cluster)
        self.shortage = f"no plan gives each of {count} machines a part of the model"
        for fewer in _smaller_counts(max(2, len(pinned)), count - 1):
            self._score_fewer(fewer)
            if self.plans:
                return
        if len(pinned) <= 1:
            self._score_single_machine(one_machine, pinned)

    def _score_fewer(self, count: int) -> None:
        """Score candidates for some of the machines: the fastest, and where none fits on these, those with memory."""
        before, cluster, pinned = len(self.plans), self.problem.cluster, sorted(set(self.problem.pins.values()))
        numbers = choose_machines(cluster, count, pinned)
        self._score_candidates(self._smaller_problem(numbers))
        if not any(plan.fits for plan in self.plans[before:]):
            large = choose_large_machines(cluster, count, self._uncut_bytes, pinned)
            if large != numbers:
                self._score_candidates(self._smaller_problem(large))

    @cached_property
    def _uncut_bytes(self) -> HeldBytes:
        return uncut_memory(self.problem.graph)

    def _score_single_machine(self, one_machine: ScoredPlan, pinned: Sequence[int]) -> None:
        """One machine: the pinned one, else the best."""
        self._add(self._score_one_machine(pinned[0]) if pinned else one_machine)

    def _score_best_machine(self) -> ScoredPlan:
        """The model uncut on the fastest machine that holds it; where none does, on the largest."""
        (fastest,) = choose_machines(self.problem.cluster, 1)
        plan = self._score_one_machine(fastest)
        if plan.fits or len(self.problem.cluster) == 1:
            return plan
        (large,) = choose_large_machines(self.problem.cluster, 1, self._uncut_bytes)
        return self._score_one_machine(large)

    def _score_one_machine(self, machine: int) -> ScoredPlan:
        return self.scorer.score(
            "one machine", one_machine_cut(self.problem.graph), self.problem.cluster.alone(machine)
        )

    def _smaller_problem(self, numbers: Sequence[int]) -> PlanningProblem:
        """The same problem for some of the machines, among them all with pins."""
        problem = self.problem
        pins = {op: numbers.index(machine) for op, machine in problem.pins.items()}
        return replace(problem, cluster=problem.cluster.select(numbers), pins=pins)

    def _score_candidates(self, problem: PlanningProblem, *, tight: bool = False) -> None:
        """Score all candidates; where the graph is large and repeats blocks, those that are best by estimates.

        tight: those for machines that lack memory, too, where what does not fit is faster by far. Of what by estimates
        does not fit, what comes nearest to it is scored where it nearly fits, or nothing else does.
        """
        self.problems.append(problem)
        names = self._list_names(problem)
        too_large = self._score_best_of(problem, names)
        if tight and self._is_room_worth_much(too_large):
            more = self._list_prefixed(problem, tight=True)
            too_large += self._score_best_of(problem, [name for name in more if name not in names])
        room = max(m.memory_bytes for m in problem.cluster.machines) if any(p.fits for p in self.plans) else math.inf
        nearest = find_nearest(too_large, room)
        self._score_in_full(problem, [estimate.name for estimate in nearest])
        self.rejected += [one.reject() for one in too_large if one not in nearest]

    def _list_names(self, problem: PlanningProblem) -> list[str]:
        """Return the names of the candidates that are wanted; those for machines that lack memory if none else is."""
        return self._list_prefixed(problem, tight=False) or self._list_prefixed(problem, tight=True)

    def _list_prefixed(self, problem: PlanningProblem, *, tight: bool) -> list[str]:
        return [name for name in candidate_names(problem, tight=tight) if name.startswith(self.prefix)]

    def _is_room_worth_much(self, too_large: Sequence[Estimate]) -> bool:
        """Whether a plan that does not fit, or a candidate that would not, is faster by far than all that fit."""
        figures = [plan.figures for plan in self.plans] + [estimate.figures for estimate in too_large]
        fitting = min((one.step_s for one in figures if one.fits), default=math.inf)
        return any(ROOM_WORTH * one.step_s < fitting for one in figures)

    def _score_best_of(self, problem: PlanningProblem, names: Sequence[str]) -> list[Estimate]:
        """Score those that are best by estimates and fit; return those that by their estimates do not fit."""
        estimates = CandidateEstimates(problem, prefix=self.prefix)

        def rank_estimate(estimate: Estimate) -> Rank:
            machines, all_used = len(problem.cluster), not self.fewer
            return estimate.figures.rank(self.objective, all_used=all_used, machines=machines, name=estimate.name)

        estimated = estimates.estimate_all(names)
        self._score_in_full(problem, estimates.in_full)
        fitting = sorted((e for e in estimated if e.figures.fits), key=rank_estimate)
        chosen, scored = list[Estimate](), list[ScoredPlan]()
        for estimate in fitting:
            better = all(rank_estimate(estimate) < self._rank(plan) for plan in scored if plan.fits)
            if better and not any(estimate.is_like(other) for other in chosen):
                chosen.append(estimate)
                scored += self._score_in_full(problem, [estimate.name])
        self.rejected += [*estimates.rejected, *(e.reject() for e in fitting if e not in chosen)]
        return [e for e in estimated if not e.figures.fits]

    def _score_in_full(self, problem: PlanningProblem, names: Sequence[str]) -> list[ScoredPlan]:
        """Score the candidates of these names on the whole graph."""
        plans = list[ScoredPlan]()
        for candidate in propose_candidates(problem, self.scorer.costs, prefix=self.prefix, names=names):
            if isinstance(candidate, Candidate):
                plans.append(self._add(self.scorer.score(candidate.name, candidate.cut, problem.cluster)))
            else:
                self.rejected.append(candidate)
        return plans

    def _add(self, plan: ScoredPlan) -> ScoredPlan:
        """Add a plan; those that will not be chosen lose their details, as they take much memory."""
        self.plans.append(plan)
        best = min(self.plans, key=self._rank)
        limit_s = TIME_TOLERANCE * best.simulation.step_s
        self.plans = [
            other if other is best or other.simulation.step_s <= limit_s else other.without_details()
            for other in self.plans
        ]
        return plan

    def _require_plans(self) -> None:
        if self.plans:
            return
        names = candidate_names(self.problem, tight=True)
        if not any(name.startswith(self.prefix) for name in names):
            facts = f"no candidate begins with {self.prefix!r}; there are {', '.join(names)}"
            raise UsageError("E202", facts, fix="--candidates metis")
        count = len(self.problem.cluster)
        reasons = "; ".join(f"{rejected.name}: {rejected.reason}" for rejected in self.rejected)
        raise Infeasible(
            "E403",
            f"no way was found to give each of {count} machines a part of the model ({reasons})",
            fix=f"--max-machines {count}, which may use fewer",
        )

    def _improve_best(self) -> None:
        """Search near the best few plans for better ones."""
        best = sorted(self.plans, key=self._rank)[:LOCAL_SEARCH_STARTS]
        limit_s = LOCAL_SEARCH_RANGE * best[0].simulation.step_s
        for start in _unlike(best):
            if start.simulation.step_s <= limit_s:
                self._search_locally(start, self._rank)

    def _search_for_room(self) -> None:
        """Search near plans that nearly fit, and near those that need least memory, until one fits."""
        for order in (self._rank_by_excess, self._rank_by_memory):
            for start in _unlike(sorted(self.plans, key=order)[:LOCAL_SEARCH_STARTS]):
                if any(plan.fits for plan in self.plans):
                    return
                self._search_locally(start, order)

    def _search_locally(self, start: ScoredPlan, order: Callable[[ScoredPlan], Any]) -> None:
        if len(start.cluster) == 1:
            return

        def rank(cut: Cut) -> Any:
            return order(self.scorer.simulate("", cut, start.cluster))

        problem = next(problem for problem in self.problems if problem.cluster == start.cluster)
        better = improve_cut(problem, start.cut, rank, order(replace(start, name="")))
        if better is not None:
            self._add(self.scorer.score(f"{start.name}{LOCAL_SEARCH_SUFFIX}", better, start.cluster))

    def _fill_waits(self) -> None:
        """Add the best few plans with gradients deferred to where machines would wait, where that is better."""
        best = sorted(self.plans, key=self._rank)[:DEFERRING_PLANS] if self.objective == TIME else []
        for plan in _unlike(best):
            if len(plan.cluster) == 1 or plan.cut.box_count > MAX_INSTRUCTIONS:
                continue
            name, rounds = f"{plan.name}{DEFERRED_SUFFIX}", [self.scorer.detail(plan)]
            for _ in range(DEFERRING_ROUNDS):
                last = rounds[-1]
                cut = fill_waits(last.dataflow, last.simulation, plan.cluster, self.scorer.costs)
                if cut is None or cut == last.cut:
                    break
                rounds.append(self.scorer.simulate_lowered(name, replace(last.dataflow, cut=cut), plan.cluster))
            shortest = min(rounds, key=self._rank)
            if shortest is not rounds[0]:
                self._add(shortest)

    def _spread_owners(self, best: ScoredPlan) -> None:
        """Add the best plan with parameters that several machines read divided evenly among them, if that is better."""
        small = len(best.cluster) > 1 and best.cut.box_count <= MAX_INSTRUCTIONS
        cut = spread_owners(best.dataflow) if small else None
        if cut is None:
            return
        spread = self.scorer.simulate(f"{best.name}{EVEN_OWNERS_SUFFIX}", cut, best.cluster)
        if self._rank(spread) < self._rank(best):
            self._add(spread)


def _unlike(plans: Sequence[ScoredPlan]) -> Iterator[ScoredPlan]:
    """Yield the plans without those whose cut came before: a search near them would find the same."""
    for i, plan in enumerate(plans):
        if not any(plan.cluster == other.cluster and plan.cut == other.cut for other in plans[:i]):
            yield plan


def _smaller_counts(low: int, high: int) -> Iterator[int]:
    """Numbers of machines to try, largest first: all up to four, then powers of two and what lies half-way."""
    steady = {1, 2, 3, 4, *(2**n for n in range(3, 13)), *(3 * 2**n for n in range(1, 12))}
    return iter(sorted((n for n in steady if low <= n <= high), reverse=True))
