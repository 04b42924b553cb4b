"""Steps, starts, samples, memory and methods beside plain torch, one process and their bounds."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...task.load_task import TaskSpec
from ..cluster import step_time
from ..cluster.step_time import StepRow
from ..peer_comparison import ACCURACY, BYTES, SAMPLES, SECONDS, Limit, PeerComparison
from ..training import data_speed, defaults, memory_peaks, methods, start_times, stragglers
from ..training.data_speed import DataSpeed
from ..training.defaults import DefaultsResult
from ..training.memory_peaks import MemoryPeaks
from ..training.methods import MethodResult
from ..training.methods_table import DOWNPOUR_OF_DDP, DOWNPOUR_OF_ONE, HOGWILD_OF_ONE, MAX_ACCURACY_LOSS, SHARED
from ..training.settings import find_settings
from ..training.start_times import PLAIN_TORCH, StartTimes
from ..training.stragglers import StragglerResult
from .benchmark import BenchmarkOptions, Tell

STEP_TASK = "cutset.models:digits_local"


def measure_step(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Time a step by plain torch, by our program, and cut over two processes."""
    rounds, steps = options.choose_rounds(5), 300
    spec = TaskSpec(STEP_TASK)
    return tuple(compare_steps(step_time.measure(spec, machines=2, rounds=rounds, steps=steps, on_progress=tell)))


def compare_steps(rows: Sequence[StepRow]) -> Iterator[PeerComparison]:
    """Compare steps with plain torch, and what an operator takes beyond it with the goal."""
    for row in rows:
        if row.plain is None:
            continue
        plain = tuple(row.plain.medians)
        yield PeerComparison(f"step, {row.how}", SECONDS, tuple(row.medians), "plain torch", plain)
        if not row.bytes_sent:
            each = tuple((own - other) / row.operators for own, other in zip(row.medians, plain, strict=True))
            limit = Limit(most=step_time.GOAL_S, of_ratio=False)
            yield PeerComparison("beyond plain torch, an operator", SECONDS, each, limit=limit)


def measure_start(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Time commands up to their first training step."""
    runs = start_times.RUNS[:1] if options.short else start_times.RUNS
    return tuple(compare_starts(start_times.measure(tell, rounds=options.choose_rounds(5, short=2), runs=runs)))


def compare_starts(rows: Sequence[StartTimes]) -> Iterator[PeerComparison]:
    """Compare what the commands take with a process that imports torch and makes one step."""
    plain = next(row for row in rows if row.command == PLAIN_TORCH)
    for row in rows:
        if row is plain:
            continue
        limit = Limit(most=start_times.GOAL_S, of_ratio=False) if row.started else None
        name = f"first step of {row.command}" if row.started else f"end of {row.command}"
        yield PeerComparison(name, SECONDS, row.stepped, PLAIN_TORCH, plain.stepped, limit)


def measure_data(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Train with transforms of samples and without."""
    found = data_speed.measure(rounds=5, on_progress=tell)
    return tuple(compare_data(found))


def compare_data(rows: Sequence[DataSpeed]) -> Iterator[PeerComparison]:
    """Compare training with each transform with that without."""
    plain = {row.how: row for row in rows if row.transform == data_speed.NONE}
    for row in rows:
        if row.transform != data_speed.NONE:
            limit = Limit(least=data_speed.GOAL) if row.has_goal else None
            speeds, own = tuple(plain[row.how].speeds), tuple(row.speeds)
            yield PeerComparison(f"{row.how}, transform {row.transform}", SAMPLES, own, "no transform", speeds, limit)


def measure_memory(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Train 400 M parameters over four workers, and watch the memory of all processes."""
    objective = ("--objective", "memory")
    peaks = memory_peaks.measure(memory_peaks.TRANSFORMER, machines=4, optimizer="adagrad", options=objective)
    return tuple(compare_memory(peaks))


def compare_memory(peaks: MemoryPeaks) -> Iterator[PeerComparison]:
    """Compare the peak of each process with the bound."""
    for name, peak in sorted(peaks.peaks.items()):
        yield PeerComparison(name, BYTES, (float(peak),), "bound", (float(peaks.bound_bytes),), Limit(most=1.0))


def measure_stragglers(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Time iterations of Sandblaster with a slow replica."""
    return tuple(compare_stragglers(stragglers.measure()))


def compare_stragglers(rows: Sequence[StragglerResult]) -> Iterator[PeerComparison]:
    """Compare iterations with the ideal, in which all replicas are busy to the end."""
    for row in rows:
        name = f"iteration, {row.replicas} replicas, {row.how}"
        yield PeerComparison(name, SECONDS, (row.seconds,), "all busy to the end", (row.ideal_s,))


def measure_methods(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Train MNIST by every method and by plain torch."""
    assert options.data is not None
    with tempfile.TemporaryDirectory(prefix="cutset-bench-") as folder:
        contestants = methods.make_contestants(options.data, Path(folder), find_settings([]))
        return tuple(compare_methods(methods.measure(contestants, epochs=5, rounds=3, tell=tell)))


def compare_methods(rows: Sequence[MethodResult]) -> Iterator[PeerComparison]:
    """Compare our methods' samples/s with torch's of as many processes and with one process, and their accuracies."""
    by_name = {row.name: row for row in rows}
    one, ddp = by_name[methods.ONE], by_name[methods.DDP_64]
    shared = [row for row in rows if row.name in SHARED]
    best = max(shared, key=lambda row: row.samples_per_s) if shared else None  # of which the goals are
    for row in rows:
        if not row.ours:
            continue
        of_ddp, of_one = (Limit(least=DOWNPOUR_OF_DDP), Limit(least=DOWNPOUR_OF_ONE)) if row is best else (None, None)
        of_one = Limit(least=HOGWILD_OF_ONE) if row.name == "hogwild" else of_one
        yield PeerComparison(row.name, SAMPLES, row.rates, ddp.name, ddp.rates, of_ddp)
        yield PeerComparison(row.name, SAMPLES, row.rates, one.name, one.rates, of_one)
        yield _compare_accuracy(row.name, (row.learned.accuracy,), one.name, (one.learned.accuracy,), MAX_ACCURACY_LOSS)


def measure_defaults(options: BenchmarkOptions, tell: Tell) -> Sequence[PeerComparison]:
    """Train digits by every method with nothing else named."""
    rows = defaults.measure_defaults([(defaults.DIGITS, None)], replicas=(2, 4), seeds=3, tell=tell)
    return tuple(compare_defaults(rows))


def compare_defaults(rows: Sequence[DefaultsResult]) -> Iterator[PeerComparison]:
    """Compare accuracies with that of one process."""
    alone = {row.task: row.accuracies for row in rows if row.method == defaults.ONE}
    for row in rows:
        if row.method != defaults.ONE:
            name = f"{row.task}, {row.method}, {row.replicas} replicas"
            yield _compare_accuracy(name, row.accuracies, defaults.ONE, alone[row.task], defaults.MAX_LOSS)


def _compare_accuracy(
    name: str, values: tuple[float, ...], peer: str, peer_values: tuple[float, ...], loss: float
) -> PeerComparison:
    """Compare accuracies, of which the median may be lower than the peer's by so much."""
    row = PeerComparison(f"accuracy of {name}", ACCURACY, values, peer, peer_values)
    least = sorted(peer_values)[len(peer_values) // 2] - loss
    return PeerComparison(row.name, row.unit, values, peer, peer_values, Limit(least=least, of_ratio=False))
