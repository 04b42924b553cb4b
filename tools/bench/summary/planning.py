"""Plans beside those that others make, what planning takes, and predictions beside what was measured."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..cluster import emulated_cluster, lockstep_vs_pipelined, prediction
from ..cluster.link import measure_link
from ..cluster.lockstep_vs_pipelined import ClusterExperiment, ClusterResult
from ..cluster.prediction import PlannedPair
from ..device_placement.graphs.graph_files import read_graph_files
from ..device_placement.run_graphs import GraphResult, plan_graph
from ..peer_comparison import BYTES, CPU_SECONDS, OBJECTIVE, SECONDS, Limit, PeerComparison
from ..planner import planning_time
from ..planner.baselines import PlanComparison, compare_plans
from ..planner.models import list_subjects
from ..planner.planning_time import PlanningTime
from ..planner.unlike_machines import UnlikeComparison, compare_unlike, list_cases
from .benchmark import BenchmarkOptions, Tell
from .plain_export import NAME as EXPORT
from .plain_export import measure_export

SEEDS, GRAPH_LIMIT_S = 30, 20.0
SAME = 1e-9  # relative, of two simulated steps that are one
MACHINES = 8
# The most CPU seconds for a transformer of so many layers on 8 machines: what AutoParallel took on cores of an EPYC.
GOALS = {2: 7.7, 8: 12.2}
CLUSTER_TASK = "cutset.tools.bench.cluster.recurrent_net:recurrent"
RATE = 125e6  # bytes/s of each link


def measure_plans(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Plan known, bundled and random nets."""
    rows = []
    for row in compare_plans(list_subjects(seeds=SEEDS)):
        rows.append(row)
        tell(f"{row.net} on {row.machines} machines: {row.plan}")
    return tuple(list_steps(rows))


def list_steps(rows: Sequence[PlanComparison]) -> Iterator[PeerComparison]:
    """Compare the simulated step of our plan with that of the best plan that others make."""
    for row in rows:
        others = {"one machine": row.one_machine_s, **row.peers}
        best = min(others, key=others.__getitem__)
        limit = Limit(most=1 + SAME)
        yield PeerComparison(
            f"{row.net}, {row.machines} machines", SECONDS, (row.step_s,), best, (others[best],), limit
        )


def measure_unlike(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Plan nets for unlike machines with little memory."""
    rows = []
    for row in compare_unlike(list_cases()):
        rows.append(row)
        tell(f"{row.net}, memory {row.memory}: {row.plan}")
    return tuple(list_unlike(rows))


def list_unlike(rows: Sequence[UnlikeComparison]) -> Iterator[PeerComparison]:
    """Compare the simulated step of our plan, where one fits, with that of the best plan by hand that fits."""
    for row in rows:
        if row.step_s is None:
            continue
        name = f"{row.net}, memory {row.memory}, {row.micro_batches} micro-batches"
        if row.hand_step_s is None:
            yield PeerComparison(f"{name}; no plan by hand fits", SECONDS, (row.step_s,))
            continue
        limit = Limit(most=1 + SAME)
        yield PeerComparison(name, SECONDS, (row.step_s,), row.hand_plan, (row.hand_step_s,), limit)


def measure_planning_time(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Plan large nets in processes of their own, each beside an export by torch of the same net."""
    layers = tuple(GOALS)[:1] if options.short else tuple(GOALS)
    more = () if options.short else planning_time.CASES
    cases = [*(((f"transformer, {n} layers", _name_transformer(n)), (MACHINES,)) for n in layers), *more]
    rounds = options.choose_rounds(3, short=1)
    goals = {f"transformer, {n} layers": Limit(most=GOALS[n], of_ratio=False) for n in layers}
    found = []
    for (net, task), counts in cases:
        for machines in counts:
            pairs = [(_plan(net, task, machines, tell), measure_export(task)) for _ in range(rounds)]
            found.append(compare_planning(pairs, goals.get(net)))
    return tuple(found)


def _name_transformer(layers: int) -> str:
    return f"cutset.models:transformer(layers={layers}, width=1024, heads=16, context=1024, batch=8)"


def _plan(net: str, task: str, machines: int, tell: Tell) -> PlanningTime:
    return planning_time.measure_planning(tell, [((net, task), (machines,))])[0]


def compare_planning(pairs: Sequence[tuple[PlanningTime, float]], limit: Limit | None) -> PeerComparison:
    """Compare the CPU seconds of one plan with those of exports, by rounds."""
    planned, exported = zip(*pairs, strict=True)
    name, seconds = f"{planned[0].net}, {planned[0].machines} machines", tuple(one.cpu_s for one in planned)
    return PeerComparison(name, CPU_SECONDS, seconds, EXPORT, exported, limit)


def measure_predictions(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Plan and run the standing pairs."""
    return tuple(list_predictions(prediction.measure_predictions(tell)))


def list_predictions(rows: Sequence[PlannedPair]) -> Iterator[PeerComparison]:
    """Compare measured steps and bytes with what was predicted."""
    least, most = prediction.STEP_WITHIN
    for row in rows:
        name = f"{row.pair.model.rpartition(':')[2]}, {row.pair.cluster}"
        steps = tuple(one.cut.median_s for one in row.rounds)
        predictions = tuple(one.predicted_s for one in row.rounds)
        within = Limit(1 / most, 1 / least)
        yield PeerComparison(f"step of {name}", SECONDS, steps, "predicted", predictions, within)
        predicted, sent = row.whole_bytes
        exact = Limit(1.0, 1.0)
        yield PeerComparison(f"sent by {name}", BYTES, (float(sent),), "predicted", (float(predicted),), exact)


def measure_cluster(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Train on an emulated cluster of four machines, in lock-step and with micro-batches."""
    from ...task.load_task import TaskSpec

    experiment = ClusterExperiment(TaskSpec(CLUSTER_TASK), 4, RATE, 0.0, plain=False)
    with emulated_cluster.EmulatedCluster(4, rate=RATE) as cluster:
        link = measure_link(cluster.process_placement)
        return tuple(list_cluster(lockstep_vs_pipelined.run_experiment(experiment, cluster, link, tell)))


def list_cluster(result: ClusterResult) -> Iterator[PeerComparison]:
    """Compare the steps of micro-batches and of lock-step, and all cut steps with their predictions."""
    micro, lock = result.micro, result.lock_step
    gain, error = Limit(most=1 / lockstep_vs_pipelined.MIN_GAIN), lockstep_vs_pipelined.MAX_ERROR
    yield PeerComparison(f"step, {micro.variant.name}", SECONDS, micro.rounds, lock.variant.name, lock.rounds, gain)
    for row in result.rows[1:]:
        name, within = f"step, {row.variant.name}", Limit(1 / (1 + error), 1 / (1 - error))
        yield PeerComparison(name, SECONDS, row.rounds, "predicted", (row.variant.simulation.step_s,), within)


def measure_graphs(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Plan published graphs."""
    assert options.graphs is not None
    rows = []
    for file in read_graph_files([Path(options.graphs)]):
        tell(file.path.name)
        rows += list(plan_graph(file, machines=None, seed=0, limit_s=GRAPH_LIMIT_S))
    return tuple(list_graphs(rows))


def list_graphs(rows: Sequence[GraphResult]) -> Iterator[PeerComparison]:
    """Compare our objectives with each that was published."""
    for row in rows:
        name = f"{row.graph}, {row.machines} devices, {row.unit}"
        if not row.reference:
            yield PeerComparison(name, OBJECTIVE, (row.objective,))
        for who, published in row.reference.items():
            yield PeerComparison(name, OBJECTIVE, (row.objective,), who, (published,))
