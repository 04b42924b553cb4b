"""Fits the constants of a `Machine` and a `Cluster` to measured times: straight lines through medians.

A box takes a start cost and its FLOPs (or bytes) at a rate: a line through the sizes of its class. A segment costs what
is left at no operator, a message what a chain takes longer where it goes to and fro.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...partition.cluster.cost_model import CostModel, Work
from ...partition.cluster.machines import Cluster, Machine, Rate
from ...partition.ir.graph import Graph
from ...partition.operators.sharding.cost_class import CONTRACTION, ELEMENTWISE, RANDOM, VIEW

DIGITS = 4  # that are worth keeping of a measured number
FLAT = 4.0  # the most that the start cost of a largest size can be of its time is 1 - 1 / FLAT
MAX_COLD = 3.0  # more would be noise
MIN_S = 1e-9  # no cost is less: a difference of two noisy medians may be


@dataclass(frozen=True)
class LinearFit:
    """start + slope * x, neither negative."""

    start: float
    slope: float


@dataclass(frozen=True)
class OperatorSample:
    """The times of one operator: its work, and the median seconds forward and backward, with the segment around it.

    single_s: forward with one thread, where the worker has several.
    """

    kind: str
    size: str
    work: Work
    forward_s: float
    backward_s: float
    single_s: float | None = None


@dataclass(frozen=True)
class ChainSample:
    """Medians of a step of a chain whose messages have so many bytes: on one machine, and to and fro between two.

    alone_s: of one of the chains that go both ways at once. joins: messages without bytes that these need to end.
    busy_s: for how long all threads of both have cores in a step between two, but for what they look for messages.
    """

    bytes: int
    alone_s: float
    together_s: float
    messages: int  # forward and backward
    segments: int  # more than alone
    joins: int = 0
    busy_s: float = 0.0


def fit_line(points: Sequence[tuple[float, float]]) -> LinearFit:
    """Fit a line to points (x, t > 0) by relative error; neither start nor slope is negative."""
    weights = [1 / (t * t) for _, t in points]
    total = sum(weights)
    x_mean = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    t_mean = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - x_mean) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    if spread == 0:
        return LinearFit(t_mean, 0.0)
    both = sum(w * (x - x_mean) * (t - t_mean) for w, (x, t) in zip(weights, points, strict=True))
    slope = max(0.0, both / spread)
    start = t_mean - slope * x_mean
    if start >= 0:
        return LinearFit(start, slope)
    through_zero = sum(w * x * t for w, (x, t) in zip(weights, points, strict=True))
    return LinearFit(0.0, through_zero / sum(w * x * x for w, (x, _) in zip(weights, points, strict=True)))


def fit_machine(name: str, samples: Sequence[OperatorSample], repeated: Mapping[int, tuple[float, float]]) -> Machine:
    """Fit rates and start costs. repeated: median seconds, forward and backward, of segments of n tiny operators."""
    ahead = fit_line([(n, forward) for n, (forward, _) in repeated.items()])
    back = fit_line([(n, backward) for n, (_, backward) in repeated.items()])
    machine = Machine(
        name,
        operator_s=_round_digits(ahead.slope),
        gradient_s=_round_digits(back.slope),
        segment_s=_round_digits(ahead.start),
        segment_back_s=_round_digits(back.start),
    )
    bound = [s for s in samples if s.kind == ELEMENTWISE]
    both_ways = (
        _fit_slope_rate([(s.work.bytes, _subtract(s.forward_s, ahead.start)) for s in bound]),
        _fit_slope_rate([(s.work.backward_bytes, _subtract(s.backward_s, back.start)) for s in bound]),
    )
    machine = replace(machine, memory_bandwidth=_round_digits(math.sqrt(math.prod(both_ways))))
    kinds = dict.fromkeys(s.kind for s in samples if s.kind != ELEMENTWISE)
    rates = {kind: _fit_rate(machine, [s for s in samples if s.kind == kind]) for kind in kinds if kind != VIEW}
    products = rates[CONTRACTION]
    if VIEW in kinds:
        (moved,) = (s for s in samples if s.kind == VIEW)
        starts = _subtract(moved.forward_s, ahead.start), _subtract(moved.backward_s, back.start)
        rates[VIEW] = Rate(
            products.flops_per_s, products.backward_flops_per_s, _round_digits(starts[0]), _round_digits(starts[1])
        )
    return replace(machine, flops_per_s=products.flops_per_s, rates=rates)


def _fit_rate(machine: Machine, samples: Sequence[OperatorSample]) -> Rate:
    forward = [(s.work.flops, _subtract(s.forward_s, machine.segment_s)) for s in samples]
    backward = []
    for s in samples:
        added = s.work.accumulated_bytes / machine.memory_bandwidth
        backward.append((s.work.backward_flops, _subtract(s.backward_s, machine.segment_back_s + added)))
    gradients = max(1, samples[0].work.gradients)
    starts = fit_line(forward).start, fit_line(backward).start / gradients
    return Rate(
        _round_digits(_fit_slope_rate(forward)),
        _round_digits(_fit_slope_rate(backward)),
        _round_digits(starts[0]),
        _round_digits(starts[1]),
    )


def add_random_rate(machine: Machine, rate: float) -> Machine:
    """Return the machine with its rate of random numbers per second."""
    random_rate = Rate(_round_digits(rate), _round_digits(rate), machine.operator_s, machine.gradient_s)
    return replace(machine, rates={**machine.rates, RANDOM: random_rate})


def fit_network(
    machine: Machine, graphs: tuple[Graph, Graph], chains: Sequence[ChainSample]
) -> tuple[Machine, float, float]:
    """Return the machine with its costs of a message and of a step, and the network's bandwidth and latency.

    chains: the one with the smallest messages, those that go both ways at once, since that is what a network can carry
    while all machines send, and the mixed one; graphs: of the first and of the last. A message costs at
    either end half of what the processes are busy with it; what it takes longer than that is its latency.
    """
    extra = machine.segment_s + machine.segment_back_s
    first, *both_ways, mixed = chains
    start, again = (_compute_surplus(c, extra) / c.messages for c in (first, mixed))
    # What the mixed chain takes longer is not the network's: its messages are those of the first.
    few, many = (_sum_seconds(graph, machine, starts=True) / first.messages for graph in graphs)
    cold = min(MAX_COLD, max(0.0, again - start) / max(many - few, MIN_S))
    points = [(first.bytes, _subtract(start, 0.0))]
    points += [(c.bytes, _subtract(_compute_surplus(c, extra) - c.joins * start, 0.0) / c.messages) for c in both_ways]
    line = fit_line(points)
    handled = min(line.start, (first.busy_s - first.alone_s - first.segments * extra) / first.messages)
    message = _subtract(handled, cold * few) / 2
    latency = _subtract(line.start, 2 * message + cold * few)
    ends = zip((chains[0], chains[-1]), graphs, strict=True)
    step = min(_subtract(c.alone_s, extra + _sum_seconds(graph, machine)) for c, graph in ends)  # noise only adds to it
    machine = replace(machine, message_s=_round_digits(message), step_s=_round_digits(step), cold=_round_digits(cold))
    return machine, _round_digits(_fit_slope_rate(points)), _round_digits(latency)


def _compute_surplus(chain: ChainSample, segment_s: float) -> float:
    """Return how much longer a chain takes between two machines, without its segments."""
    return chain.together_s - chain.alone_s - chain.segments * segment_s


def _sum_seconds(graph: Graph, machine: Machine, *, starts: bool = False) -> float:
    """Sum the seconds of all operators, forward and backward; or those of starting them."""
    costs = CostModel(graph.tensors)
    works = [costs.work(op, op.nest.box) for op in graph.ops]
    return sum(sum(work.starts(machine) if starts else work.seconds(machine)) for work in works)


def make_cluster(machine: Machine, count: int, bandwidth: float, latency_s: float) -> Cluster:
    """Return a cluster of `count` machines like this one."""
    machines = tuple(replace(machine, name=f"{machine.name} {i}") for i in range(count))
    return Cluster(machines if count > 1 else (machine,), bandwidth, latency_s)


def _subtract(seconds: float, without: float) -> float:
    return max(MIN_S, seconds - without)


def _fit_slope_rate(points: Sequence[tuple[float, float]]) -> float:
    """Return the rate, amount per second, of the line through (amount, seconds).

    The largest size was chosen so that starting it hardly matters; a line by which it does is one that noise has left
    flat.
    """
    slope = fit_line(points).slope
    most, seconds = max(points)
    steepest = FLAT * most / seconds
    return min(1 / slope, steepest) if slope > 0 else steepest


def round_digits(size: int) -> int:
    """Return a number of bytes with the digits that are worth keeping."""
    return int(_round_digits(size))


def _round_digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
