"""Plans a whole run: which split of the machines into replicas trains on the most samples a second.

DistBelief's two dimensions (Dean et al., NIPS 2012, figures 4 and 5) are one search here: a model is cut over more
machines, or more replicas of it train side by side.

1. Plan a replica for each number of machines that a cluster may be divided by; where shards would not fit beside it,
   once more with room for them.
2. For each, predict the run of one, two, four ... and as many replicas as there are machines for, with as many shards
   as a replica has machines, and with one on each machine.
3. Take the fastest that fits in memory; of those that are about as fast, the one with the fewest replicas, since what
   many replicas push side by side is worth less than steps one after the other. One process without shards counts too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...errors import Infeasible, UsageError
from ..cluster.hierarchy import choose_large_machines, choose_machines, order_machines
from ..cluster.machines import Cluster, HeldBytes
from ..ir.box import volume
from ..planner.plan import PlanningResult
from .exchange import Exchange
from .run_split import SHARD_COPIES, RunSplit, predict_split

UNSUITED = ("E202", "E205")  # errors of options that other numbers of machines may suit: kinds of candidates, pins
NOTHING = HeldBytes(0, 0)
TOLERANCE = 1.05  # splits that are slower by less are as fast as the fastest, as far as can be predicted


@dataclass(frozen=True)
class RunPlan:
    """All splits that were predicted, the fastest first; the chosen one; and why some widths have none, in words.

    one_process: samples/s of one process without shards on the fastest machine that holds the model; None where none
    does. pays: whether the chosen split is faster than that, if there is one.
    """

    splits: tuple[RunSplit, ...]
    chosen: RunSplit
    rejected: tuple[str, ...]
    one_process: float | None
    pays: bool


def plan_run(
    cluster: Cluster,
    exchange: Exchange,
    plan_replica: Callable[[Cluster], PlanningResult],
    *,
    batch: int,
    model_bytes: HeldBytes = NOTHING,
) -> RunPlan:
    """Plan a run over the machines of a cluster.

    plan_replica: plans one replica over all machines of the cluster that it is given; Infeasible where it cannot, or
    UsageError of an option that these machines do not suit. batch: samples of a replica's step. model_bytes: of the
    whole model on one machine (`uncut_memory`), by which machines are chosen where it does not fit on the fastest.
    Raises the error of the last width where no width has a plan, Infeasible where no split fits.
    """
    ordered = cluster.select(order_machines(cluster))
    results, rejected = list[PlanningResult](), list[str]()
    splits, failure = list[RunSplit](), None
    for width in list_widths(len(cluster)):
        try:
            result = _plan_width(ordered, width, plan_replica, model_bytes)
        except (Infeasible, UsageError) as error:
            if isinstance(error, UsageError) and error.code not in UNSUITED:
                raise
            rejected.append(f"{_count_each(width)}: {error.facts}")
            failure = error
            continue
        results.append(result)
        if result.shortage:
            rejected.append(f"{_count_each(width)}: {result.shortage}")
            continue
        found = list(_predict_splits(ordered, result, exchange, batch))
        if all(split.shortage for split in found):
            found += _leave_room(ordered, result, exchange, plan_replica, batch)
        splits += found
    if failure is not None and not results:
        raise failure
    fitting = [split for split in splits if not split.shortage]
    if not fitting:
        reasons = "; ".join([*rejected, *dict.fromkeys(split.shortage for split in splits)])
        raise Infeasible("E404", f"no split of the machines fits in memory ({reasons})", fix="more machines or memory")
    alone = [result.one_machine for result in results if result.one_machine.fits]
    one_process = batch / min(plan.simulation.step_s for plan in alone) if alone else None
    return _choose(splits, fitting, one_process, tuple(rejected))


def _plan_width(
    cluster: Cluster, width: int, plan_replica: Callable[[Cluster], PlanningResult], model_bytes: HeldBytes
) -> PlanningResult:
    """Plan a replica on the fastest machines, and where nothing fits in their memory, on those that have more."""
    fastest = choose_machines(cluster, width)
    try:
        return plan_replica(cluster.select(fastest))
    except Infeasible:
        large = choose_large_machines(cluster, width, model_bytes)
        if large == fastest:
            raise
    return plan_replica(cluster.select(large))


def _count_each(width: int) -> str:
    return "1 machine each" if width == 1 else f"{width} machines each"


def _predict_splits(cluster: Cluster, result: PlanningResult, exchange: Exchange, batch: int) -> Iterator[RunSplit]:
    """Yield a split for each number of replicas of a plan, with the better number of shards."""
    width = len(result.winner.cluster)
    for replicas in list_replicas(len(cluster) // width):
        if replicas <= exchange.backups:
            continue
        counts = {replicas * width} if exchange.ring else {width, replicas * width}
        ways = [
            predict_split(cluster, result, exchange, replicas=replicas, shards=shards, batch=batch)
            for shards in sorted(counts)
        ]
        yield max(ways, key=lambda split: (not split.shortage, split.samples_per_s, -split.shards))


def _leave_room(
    cluster: Cluster,
    result: PlanningResult,
    exchange: Exchange,
    plan_replica: Callable[[Cluster], PlanningResult],
    batch: int,
) -> list[RunSplit]:
    """Plan a replica again, on machines that have as much memory less as their shards need, and predict its splits.

    With one shard a machine of the replica, where that leaves a plan, else with one on each machine of the cluster.
    """
    planned = result.winner.cluster
    width = len(planned)
    held = SHARD_COPIES * sum(volume(info.box) * info.element_bytes for info in result.problem.graph.parameters)
    for shards in (width, len(cluster) // width * width):
        room = held // shards
        machines = tuple(replace(m, memory_bytes=m.memory_bytes - room) for m in planned.machines)
        if exchange.ring or min(machine.memory_bytes for machine in machines) <= 0:
            continue
        try:
            smaller = plan_replica(replace(planned, machines=machines))
        except Infeasible:
            continue
        if not smaller.shortage:
            return list(_predict_splits(cluster, smaller, exchange, batch))
    return []


def _choose(
    splits: Sequence[RunSplit], fitting: Sequence[RunSplit], one_process: float | None, rejected: tuple[str, ...]
) -> RunPlan:
    """Choose the split with the fewest replicas of those about as fast as the fastest, if they pay."""
    best = max(split.samples_per_s for split in fitting)
    alone = min(fitting, key=lambda split: (split.machines, split.replicas))
    least = max(best / TOLERANCE, (one_process or 0.0) * TOLERANCE)
    close = [split for split in fitting if split.samples_per_s >= least]
    chosen = min(close or [alone], key=lambda split: (split.replicas, split.machines, -split.samples_per_s))
    ranked = sorted(splits, key=lambda split: (split.shortage != "", -split.samples_per_s))
    return RunPlan(tuple(ranked), chosen, rejected, one_process, bool(close))


def list_widths(count: int) -> Iterator[int]:
    """Yield the numbers of machines of a replica that are tried: all up to four, powers of two, thirds, all."""
    steady = {1, 2, 3, 4, *(2**n for n in range(3, 13)), *(3 * 2**n for n in range(1, 12)), count}
    return iter(sorted(width for width in steady if width <= count))


def list_replicas(most: int) -> Iterator[int]:
    """Yield one, two, four ... and as many replicas as there is room for."""
    return iter(sorted({*(2**n for n in range(13) if 2**n <= most), most}))
