"""Plans a cut: every candidate of the portfolio is spelled out and simulated; the best that fits in memory wins."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from .candidates import Candidate, LeftOut, Question, answers, most_machines, names, require
from ..cluster.machines import Cluster
from ..cluster.cost_model import Costs
from ..dataflow.cut import Cut, one_machine
from ...errors import Infeasible, UsageError
from ..dataflow.dataflow import Flow, flow
from ..ir.graph import Graph
from ..dataflow.memory_model import fitted
from .pins import pinned
from ..placement.placement_file import Placement
from .local_search import polished
from ..dataflow.simulator import Simulation, simulate
from ..placement.from_plan import written

TIME, BYTES, MEMORY = "time", "bytes", "memory"
OBJECTIVES = (TIME, BYTES, MEMORY)

# Who asks for k machines wants them used. Where the network is so slow that the fastest plan would leave a machine
# idle, it has at least this part of its even share of the work; the verdict says that one machine would be faster.
FAIR_SHARE = 0.25
SEARCHED, POLISH = ("mesh", "stages x mesh", "metis levels", "kahypar"), ", polished"
POLISHED = 2  # candidates that local search starts from
# The simulator is not exact to so much: among plans within it of the fastest, the one that sends least is better.
ALIKE = 1.03

Rank = tuple[bool, bool, float, float, float, int, str]


@dataclass(frozen=True)
class Judged:
    """A cut and what it costs. cluster: the machines that it uses. least_share: see placement.Score."""

    name: str
    flow: Flow
    cluster: Cluster
    simulation: Simulation
    least_share: float

    @property
    def searched(self) -> bool:
        """Whether it was searched for; one machine, slices, tiles, stages and METIS alone are what others do."""
        return self.name.startswith(SEARCHED) or self.name.endswith(POLISH)

    @property
    def fits(self) -> bool:
        """Whether every machine has the memory."""
        return not self.lacking

    @property
    def lacking(self) -> list[int]:
        """Machines with too little memory."""
        pairs = zip(self.simulation.memory_bytes, self.cluster.machines, strict=True)
        return [number for number, (needed, machine) in enumerate(pairs) if needed > machine.memory_bytes]

    @property
    def overfull(self) -> float:
        """What the fullest machine needs, as a part of what it has."""
        pairs = zip(self.simulation.memory_bytes, self.cluster.machines, strict=True)
        return max(needed / machine.memory_bytes for needed, machine in pairs)

    def rank(self, objective: str, *, all_used: bool) -> Rank:
        """The best plan has the smallest; of equals that of fewer machines.

        all_used: machines that are nearly idle count against it.
        """
        seconds, sent = self.simulation.step_s, float(self.flow.bytes_forward)
        most = float(max(self.simulation.memory_bytes))
        order = {TIME: (seconds, sent, most), BYTES: (sent, seconds, most), MEMORY: (most, seconds, sent)}[objective]
        return (not self.fits, all_used and self.least_share < FAIR_SHARE, *order, len(self.cluster), self.name)


@dataclass(frozen=True)
class Outcome:
    """What planning found. judged: all candidates; alone: one machine; left_out: candidates that could not be made."""

    question: Question
    objective: str
    winner: Judged
    alone: Judged
    judged: tuple[Judged, ...]
    left_out: tuple[LeftOut, ...]


class Wishes(TypedDict, total=False):
    """What of a plan may be asked for.

    seed: of everything random. only: consider the candidates whose name begins so ("metis"). fewer: some machines may
    be left out, all but one if need be; else every machine gets a share. objective: what is to be least, "time",
    "bytes" or "memory" (of the fullest machine). pins: "GLOB=MACHINE" (see pins.py). micro_batches: how many batches
    of the graph's size make a step.
    """

    seed: int
    only: str
    fewer: bool
    objective: str
    pins: Sequence[str]
    micro_batches: int


def plan(graph: Graph, cluster: Cluster, *, model: str, **wishes: Unpack[Wishes]) -> Placement:
    """The best cut of `graph` over the machines of `cluster`, as a placement.

    model: the import string to note in the file. Raises Infeasible where no candidate uses every machine, or none fits
    in memory.
    """
    return written(find(graph, cluster, **wishes), model=model)


def find(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    only: str = "",
    fewer: bool = False,
    objective: str = TIME,
    pins: Sequence[str] = (),
    micro_batches: int = 1,
) -> Outcome:
    """All candidates, judged, and the best of them; arguments as of `Wishes`."""
    _demand(objective, micro_batches)
    question = Question(graph, cluster, seed, micro_batches, pinned(graph, cluster, pins))
    return _Planning(question, only=only, fewer=fewer, objective=objective).outcome()


def _demand(objective: str, micro_batches: int) -> None:
    if objective not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise UsageError("E208", f"no objective {objective!r}; there are {known}", fix="--objective time")
    if micro_batches < 1:
        raise UsageError("E209", f"{micro_batches} micro-batches; a step has at least one", fix="--micro-batches 1")


class _Planning:
    """One search for a plan."""

    def __init__(self, question: Question, *, only: str, fewer: bool, objective: str) -> None:
        self.question, self.only, self.fewer, self.objective = question, only, fewer, objective
        self.costs = Costs(question.graph.tensors)
        self.judged: list[Judged] = []
        self.left_out: list[LeftOut] = []

    def outcome(self) -> Outcome:
        cluster = self.question.cluster
        (fastest,) = _fastest(cluster, 1)
        alone = self._alone_on(fastest)
        if len(cluster) == 1:
            self.judged = [alone]
        else:
            self._judge_all(alone)
        winner = best_of(self.judged, self.objective, all_used=not self.fewer)
        if not winner.fits:
            raise _too_small(min(self.judged, key=lambda judged: judged.overfull))
        return Outcome(self.question, self.objective, winner, alone, tuple(self.judged), tuple(self.left_out))

    def _rank(self, judged: Judged) -> Rank:
        return judged.rank(self.objective, all_used=not self.fewer)

    def _judge_all(self, alone: Judged) -> None:
        count = len(self.question.cluster)
        if not self.fewer:
            require(self.question.graph, count)
        self._portfolio(self.question)
        if self.fewer:
            homes = sorted(set(self.question.pins.values()))
            for fewer in _counts(max(2, len(homes)), min(count - 1, most_machines(self.question.graph))):
                self._portfolio(self._smaller(fewer))
            if len(homes) <= 1 and alone.name.startswith(self.only):
                self._judge_alone(alone, homes)
        self._demand_some()
        if not self.only:
            for start in sorted(self.judged, key=self._rank)[:POLISHED]:
                self._polish(start)

    def _judge_alone(self, alone: Judged, homes: Sequence[int]) -> None:
        """One machine: the pinned one, else the fastest, and where that has too little memory the largest too."""
        cluster = self.question.cluster
        (fastest,) = _fastest(cluster, 1)
        largest = max(range(len(cluster)), key=lambda n: cluster.machines[n].memory_bytes)
        for number in homes or ([fastest] if alone.fits else dict.fromkeys([fastest, largest])):
            self.judged.append(alone if number == fastest else self._alone_on(number))

    def _alone_on(self, machine: int) -> Judged:
        return self.judge("one machine", one_machine(self.question.graph), part(self.question.cluster, [machine]))

    def _smaller(self, count: int) -> Question:
        """The same question for so many of the machines: those with pins, and the fastest of the others."""
        question = self.question
        numbers = _fastest(question.cluster, count, keep=sorted(set(question.pins.values())))
        pins = {op: numbers.index(machine) for op, machine in question.pins.items()}
        return replace(question, cluster=part(question.cluster, numbers), pins=pins)

    def _portfolio(self, question: Question) -> None:
        for candidate in answers(question, self.costs, only=self.only):
            if isinstance(candidate, Candidate):
                self.judged.append(self.judge(candidate.name, candidate.cut, question.cluster))
            else:
                self.left_out.append(candidate)

    def _demand_some(self) -> None:
        if self.judged:
            return
        offered = names(self.question)
        if not any(name.startswith(self.only) for name in offered):
            raise UsageError(
                "E202", f"no candidate begins with {self.only!r}; there are {', '.join(offered)}", fix="--only metis"
            )
        count = len(self.question.cluster)
        reasons = "; ".join(f"{left.name}: {left.reason}" for left in self.left_out)
        raise Infeasible(
            "E403",
            f"no way was found to give each of {count} machines a part of the model ({reasons})",
            fix=f"--max-machines {count}, which may use fewer",
        )

    def _polish(self, start: Judged) -> None:
        if len(start.cluster) == 1:
            return

        def rank(cut: Cut) -> Rank:
            return self._rank(self.judge("", cut, start.cluster))

        question = self.question if start.cluster is self.question.cluster else self._smaller(len(start.cluster))
        better = polished(question, start.flow.cut, rank)
        if better is not None:
            self.judged.append(self.judge(f"{start.name}{POLISH}", better, start.cluster))

    def judge(self, name: str, cut: Cut, cluster: Cluster) -> Judged:
        """Spell a cut out and simulate it."""
        micro_batches = self.question.micro_batches
        spelled = fitted(flow(self.question.graph, cut), cluster, in_flight=min(micro_batches, len(cluster)))
        simulation = simulate(spelled, cluster, micro_batches=micro_batches, costs=self.costs)
        total, speed = sum(simulation.flops), sum(m.flops_per_s for m in cluster.machines)
        due = [total * m.flops_per_s / speed for m in cluster.machines]
        share = min((done / even for done, even in zip(simulation.flops, due, strict=True) if even), default=1.0)
        return Judged(name, spelled, cluster, simulation, share)


def best_of(judged: Sequence[Judged], objective: str = TIME, *, all_used: bool = True) -> Judged:
    """The best plan. For its time: of those about as fast as the fastest, the one that sends least.

    None slower than a plan that was not searched for is taken, however close. all_used: see `Judged.rank`.
    """
    best = min(judged, key=lambda j: j.rank(objective, all_used=all_used))
    if objective != TIME:
        return best
    worth = best.rank(objective, all_used=all_used)[:2]
    equals = [j for j in judged if j.rank(objective, all_used=all_used)[:2] == worth]
    limit = min([best.simulation.step_s * ALIKE, *(j.simulation.step_s for j in equals if not j.searched)])
    close = [j for j in equals if j.simulation.step_s <= limit]
    return min(close, key=lambda j: (j.flow.bytes_forward, j.simulation.step_s, len(j.cluster), j.name))


def part(cluster: Cluster, numbers: Sequence[int]) -> Cluster:
    """The cluster of some of the machines, in the order given."""
    at = {number: i for i, number in enumerate(numbers)}
    links = tuple(
        replace(link, source=at[link.source], target=at[link.target])
        for link in cluster.links
        if link.source in at and link.target in at
    )
    return replace(cluster, machines=tuple(cluster.machines[n] for n in numbers), links=links)


def _fastest(cluster: Cluster, count: int, keep: Sequence[int] = ()) -> list[int]:
    """So many machines, in their order: those to keep, then the fastest."""
    others = [n for n in range(len(cluster)) if n not in keep]
    others.sort(key=lambda n: (-cluster.machines[n].flops_per_s, -cluster.machines[n].memory_bytes, n))
    return sorted([*keep, *others[: max(0, count - len(keep))]])


def _counts(least: int, most: int) -> Iterator[int]:
    """Fewer machines to try, most first: all up to four, then powers of two and what lies half-way."""
    steady = {1, 2, 3, 4, *(2**n for n in range(3, 13)), *(3 * 2**n for n in range(1, 12))}
    return iter(sorted((n for n in steady if least <= n <= most), reverse=True))


def _too_small(nearest: Judged) -> Infeasible:
    needs = [
        f"{nearest.cluster.machines[n].name} has {nearest.cluster.machines[n].memory_bytes} bytes and needs "
        f"{nearest.simulation.memory_bytes[n]}{_largest(nearest, n)}"
        for n in nearest.lacking
    ]
    return Infeasible(
        "E404",
        f"no plan fits in memory; the nearest, {nearest.name}: {'; '.join(needs)}",
        fix="use more machines, machines with more memory, or a smaller --batch",
    )


def _largest(nearest: Judged, machine: int) -> str:
    """The largest single thing that a machine would have to hold."""
    held = [(nearest.flow.piece_bytes(p.index), p) for p in nearest.flow.pieces if p.machine == machine]
    if not held:
        return ""
    size, piece = max(held, key=lambda item: (item[0], -item[1].index))
    return f" (the largest block: {piece.tensor}, {size} bytes)"
