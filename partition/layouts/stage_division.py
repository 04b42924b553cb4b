"""Divides a model into stages, and the machines among them: each stage gets a group of neighbours as a mesh of its own.

This is Alpa's pass between operators (Zheng et al., OSDI 2022, section 5); a stage whose mesh cuts the batch is one of
PipeDream's replicated stages (Narayanan et al., SOSP 2019, section 3.1). A step of M micro-batches takes about

    sum of the seconds of all stages + (M - 1) * those of the slowest,

where a stage computes a micro-batch while the next one comes in. Then:

1. A stage may begin at places where little crosses, and may have any group of neighbouring machines.
2. On every group and mesh, the layouts that are best there for the whole model say what each operator takes.
3. For every bound of the slowest stage, the least sum is found by dynamic programming over places and machines.

Indices: i, j places among the operators; k, m places among the machines, in the order given.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..cluster.cost_model import CostModel
from ..cluster.hierarchy import find_hosts
from ..cluster.machines import Cluster
from ..ir.box import volume
from ..ir.graph import Graph
from .layout_search import LayoutCosts, find_layout_costs, mesh_of_machines, mesh_shapes
from .layout_space import Bools
from .resharding_cost import Floats

MAX_PLACES = 48  # where a stage may begin
MAX_FREE = 8  # machines up to which groups of every size and at every place are tried; beyond, of powers of two
BOUNDS = 24  # of the slowest stage that are tried

Shape = tuple[int, ...]
Group = tuple[int, int]  # machines k to m
Span = tuple[int, int, Shape]  # the same as a mesh


@dataclass(frozen=True)
class MeshStage:
    """The operators up to the number `stop`, on these machines as a mesh of this shape."""

    stop: int
    machines: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True)
class StageOption:
    """What stages cost on a mesh.

    computing: seconds for the operators between two places, [i, j]. entering: seconds until what they read is there,
    [i]. leaving: seconds that what they make takes longer as some of these machines are on another host than those
    around the next place, [j]. Both are one way; gradients go the other way, and cards do both at once. fits: whether
    they fit in memory, with work enough, [i, j].
    """

    computing: Floats
    entering: Floats
    leaving: Floats
    fits: Bools

    @property
    def total_s(self) -> Floats:
        """Seconds of a micro-batch; infinite where there is no operator between the places."""
        forward = np.triu(np.ones_like(self.computing), 1) > 0
        return np.where(forward, self.computing + 2 * (self.entering[:, None] + self.leaving), np.inf)

    @property
    def busy_s(self) -> Floats:
        """Seconds until the next micro-batch can follow."""
        return np.maximum(np.maximum(self.computing, self.entering[:, None]), self.leaving)


class MeshCosts:
    """What the operators of a graph cost on meshes of some machines of a cluster, each found once."""

    def __init__(self, graph: Graph, cluster: Cluster, costs: CostModel) -> None:
        self.graph, self.cluster, self.costs = graph, cluster, costs
        self._known: dict[object, dict[Shape, LayoutCosts]] = {}
        self.host_of = {machine: n for n, host in enumerate(find_hosts(cluster)) for machine in host}

    def find(self, machines: Sequence[int]) -> Mapping[Shape, LayoutCosts]:
        """Costs on the meshes of these machines, which are those of like machines; bytes in the order given."""
        hosts = [*dict.fromkeys(self.host_of[m] for m in machines)]
        nameless = [replace(self.cluster.machines[m], name="", address="") for m in machines]
        key = tuple((one, hosts.index(self.host_of[m])) for one, m in zip(nameless, machines, strict=True))
        if key not in self._known:
            self._known[key] = {shape: self._find_one(machines, shape) for shape in mesh_shapes(len(machines))}
        return self._known[key]

    def _find_one(self, machines: Sequence[int], shape: Shape) -> LayoutCosts:
        numbers = list(machines)
        mesh = mesh_of_machines(self.cluster, numbers, shape)
        found = find_layout_costs(self.graph, self.cluster, mesh, costs=self.costs)
        return LayoutCosts(found.seconds, found.state_bytes[:, numbers], found.value_bytes[:, numbers])


def divide_stages(
    meshes: MeshCosts,
    machines: Sequence[int],
    *,
    micro_batches: int,
    least_load: float = 0.0,
    cautious: bool = False,
) -> list[MeshStage] | None:
    """Return the best division into two stages at least; None where there is none.

    machines: all machines of the cluster, in the order in which stages get them. least_load: the work that a stage has
    at least, as a part of the share that its machines have of the speed of all. Memory is to hold what a stage
    computes of one micro-batch, the others being computed again in backward; where machines of a stage exchange much,
    most of it is held of all: if `cautious`, that is what must fit.
    """
    graph, cluster, costs = meshes.graph, meshes.cluster, meshes.costs
    specs = [cluster.machines[m] for m in machines]
    speeds = [machine.flops_per_s for machine in specs]
    room = np.array([machine.memory_bytes - machine.process_bytes for machine in specs])
    ratios = np.array([machine.memory_ratio for machine in specs])
    crossing = _count_crossing_bytes(graph)
    fastest = specs[speeds.index(max(speeds))]
    places = _choose_places([sum(costs.seconds(op, op.nest.box, fastest)) for op in graph.ops], crossing)
    work = _sum_between(_count_flops(graph, costs), places)
    options = dict[Span, StageOption]()
    for k, m in _enumerate_groups(len(machines)):
        entering = _count_entering_seconds(meshes, machines, (k, m), crossing[places])
        leaving = _count_leaving_seconds(meshes, machines, (k, m), crossing[places])
        received = min(micro_batches, len(machines)) * 2 * crossing[places] / (m - k)
        copies = min(micro_batches, len(machines)) if cautious and m - k > 1 else 1
        enough = work >= least_load * work[0, -1] * sum(speeds[k:m]) / sum(speeds)
        for shape, found in meshes.find(machines[k:m]).items():
            needed = copies * ratios[k:m] * found.value_bytes + found.state_bytes
            held = np.stack([_sum_between(each, places) for each in needed.T], axis=-1) + received[:, None, None]
            fits = enough & np.all(held <= room[k:m], axis=-1)
            options[k, m, shape] = StageOption(_sum_between(found.seconds, places), entering, leaving, np.asarray(fits))
    chosen = find_best_stages(options, len(machines), micro_batches)
    return [MeshStage(places[j], tuple(machines[k:m]), shape) for _, j, (k, m, shape) in chosen] or None


def _enumerate_groups(count: int) -> Iterator[Group]:
    """Groups of neighbours, not all machines; where there are many, those of 2^n that begin at its multiples."""
    sizes = range(1, count) if count <= MAX_FREE else [2**n for n in range(count.bit_length()) if 2**n < count]
    for size in sizes:
        for k in range(0, count - size + 1, 1 if count <= MAX_FREE else size):
            yield k, k + size


def _choose_places(work: Sequence[float], crossing: Floats) -> list[int]:
    """Places between operators, both ends with them: of every part of the work the one where least crosses."""
    done = np.array([0.0, *itertools.accumulate(work)])
    part = np.minimum(MAX_PLACES - 1, done / max(done[-1], 1e-30) * MAX_PLACES).astype(int)
    inner = range(1, len(work))
    best = {int(part[i]): i for i in sorted(inner, key=lambda i: (-crossing[i], -i))}
    return [0, *sorted(best.values()), len(work)]


def _count_crossing_bytes(graph: Graph) -> Floats:
    """Bytes of the values that are live in front of each operator, and after the last one."""
    position = {name: n for n, op in enumerate(graph.ops) for name in op.outputs}
    last = {name: n for n, op in enumerate(graph.ops) for name in op.inputs}
    out = np.zeros(len(graph.ops) + 1)
    for name, n in position.items():
        info = graph.tensors[name]
        out[n + 1 : last.get(name, n) + 1] += volume(info.box) * info.travelling_bytes
    return out


def _count_flops(graph: Graph, costs: CostModel) -> list[float]:
    """FLOPs of each operator, forward and backward."""
    works = [costs.work(op, op.nest.box) for op in graph.ops]
    return [work.flops + work.backward_flops for work in works]


def _sum_between(each: Sequence[float] | Floats, places: Sequence[int]) -> Floats:
    """The sums over the operators between all pairs of places, [i, j]."""
    done = np.array([0.0, *itertools.accumulate(each)])[list(places)]
    return np.asarray(done[None, :] - done[:, None])


def _count_entering_seconds(meshes: MeshCosts, machines: Sequence[int], group: Group, crossing: Floats) -> Floats:
    """Seconds in which values come to a group from the machine before it."""
    k, m = group
    if not k:
        return np.zeros(len(crossing))
    before, host = machines[k - 1], meshes.host_of[machines[k - 1]]
    near = [n for n in machines[k:m] if meshes.host_of[n] == host]
    far = [n for n in machines[k:m] if meshes.host_of[n] != host]
    parts = [_count_seconds(meshes.cluster, before, part, m - k, crossing) for part in (near, far) if part]
    return np.asarray(np.max(parts, axis=0))


def _count_leaving_seconds(meshes: MeshCosts, machines: Sequence[int], group: Group, crossing: Floats) -> Floats:
    """Seconds for the values of those of a group that are not on the host where it ends and the next one begins.

    Where the next one begins on another host, all is counted with what enters it.
    """
    k, m = group
    if m == len(machines) or meshes.host_of[machines[m]] != meshes.host_of[machines[m - 1]]:
        return np.zeros(len(crossing))
    far = [n for n in machines[k:m] if meshes.host_of[n] != meshes.host_of[machines[m]]]
    return _count_seconds(meshes.cluster, machines[m], far, m - k, crossing) if far else np.zeros(len(crossing))


def _count_seconds(cluster: Cluster, one: int, others: Sequence[int], count: int, crossing: Floats) -> Floats:
    """Seconds for the part of values that others, of `count` machines, exchange with machines like `one`."""
    cards = {cluster.shared_card(n) or n for n in others}
    ways = len(cards) if cluster.link(one, others[0]) is None else len(others)
    bandwidth = cluster.bandwidth_between(one, others[0]) * ways
    return np.asarray(crossing * len(others) / count / bandwidth + cluster.latency_between(one, others[0]))


def find_best_stages(
    options: Mapping[Span, StageOption], count: int, micro_batches: int
) -> list[tuple[int, int, Span]]:
    """The stages (i, j, span) of the best division, one whose stages fit if any does; none where there is none."""
    busy = {span: option.busy_s for span, option in options.items()}
    for fitting in (True, False):
        total = {
            span: np.where(option.fits, option.total_s, np.inf) if fitting else option.total_s
            for span, option in options.items()
        }
        values = np.concatenate([busy[span][np.isfinite(each)] for span, each in total.items()])
        best, best_s = list[tuple[int, int, Span]](), np.inf
        for bound in np.unique(np.quantile(values, np.linspace(0, 1, BOUNDS) ** 2)) if len(values) else ():
            within = {span: np.where(busy[span] <= bound, each, np.inf) for span, each in total.items()}
            found = _find_least_sum(within, count)
            slowest = max((float(busy[span][i, j]) for i, j, span in found), default=np.inf)
            step_s = sum(float(total[span][i, j]) for i, j, span in found) + (micro_batches - 1) * slowest
            if step_s < best_s:
                best, best_s = found, step_s
        if best:
            return best
    return []


def _find_least_sum(times: Mapping[Span, Floats], count: int) -> list[tuple[int, int, Span]]:
    """The stages that cover all operators and machines in the least sum of seconds; none where none do.

    total[m][j]: the least sum of stages that have the first m machines and the operators in front of place j.
    """
    places = next(iter(times.values())).shape[0]
    total = np.full((count + 1, places), np.inf)
    total[0, 0] = 0.0
    came = dict[tuple[int, int], tuple[int, Span]]()
    for span in sorted(times, key=lambda span: (span[1], span[0])):
        k, m, _ = span
        through = total[k][:, None] + times[span]
        at = through.argmin(axis=0)
        better = through[at, np.arange(places)] < total[m]
        for j in np.flatnonzero(better).tolist():
            total[m, j] = through[at[j], j]
            came[m, j] = int(at[j]), span
    if not np.isfinite(total[count, -1]):
        return []
    stages, m, j = list[tuple[int, int, Span]](), count, places - 1
    while m:
        i, span = came[m, j]
        stages.append((i, j, span))
        m, j = span[0], i
    return stages[::-1]
