"""All benchmarks, in the order of the page."""

from collections.abc import Sequence

from ....errors import UsageError
from . import planning, training, transport
from .benchmark import Benchmark

BENCHMARKS = (
    Benchmark(
        "channel",
        "cutset bench channel",
        "Tensors between two processes of this machine, beside a raw socket and gloo.",
        transport.measure_channel,
        kept=True,
    ),
    Benchmark(
        "ps",
        "cutset bench ps",
        "100 MB of parameters to shards and back, updates applied, beside a raw socket and ps-lite.",
        transport.measure_servers,
        uses=("pslite",),
        kept=True,
    ),
    Benchmark(
        "optimizers",
        "cutset bench optimizers",
        "Optimizers on one thread, alone and as a shard applies a push, beside memcpy.",
        transport.measure_optimizers,
        kept=True,
    ),
    Benchmark(
        "step",
        "cutset bench step",
        "A training step of a small net, by our program and cut over two processes, beside plain torch.",
        training.measure_step,
        kept=True,
    ),
    Benchmark(
        "start",
        "cutset bench start",
        "From a command to its first training step, beside a process that imports torch and makes one step.",
        training.measure_start,
        kept=True,
    ),
    Benchmark(
        "planning-time",
        "cutset bench plan --scale",
        "CPU seconds that planning takes, beside torch.export of the same net.",
        planning.measure_planning_time,
        kept=True,
    ),
    Benchmark(
        "plans",
        "cutset bench plan",
        "Simulated steps of our plans, beside the best of those that others make.",
        planning.measure_plans,
    ),
    Benchmark(
        "unlike",
        "cutset bench plan --unlike",
        "Simulated steps of our plans for fast and slow machines of little memory, beside the best plan by hand.",
        planning.measure_unlike,
    ),
    Benchmark(
        "predictions",
        "cutset bench plan --measure",
        "Steps and bytes of plans that were run, beside what was predicted.",
        planning.measure_predictions,
    ),
    Benchmark(
        "cluster",
        "cutset bench cluster",
        "A step on four emulated machines with micro-batches, beside lock-step and the prediction; needs root.",
        planning.measure_cluster,
    ),
    Benchmark(
        "graphs",
        "cutset bench plan --graphs DIR",
        "Plans of published graphs, beside the published objectives: smaller is better.",
        planning.measure_graphs,
        needs=("graphs",),
    ),
    Benchmark(
        "data",
        "cutset bench data",
        "Training with transforms of samples that cost as much as a step, beside training without.",
        training.measure_data,
    ),
    Benchmark(
        "memory",
        "cutset bench memory",
        "The peak memory of every process, training 400 M parameters over four workers, beside its bound.",
        training.measure_memory,
    ),
    Benchmark(
        "stragglers",
        "cutset bench stragglers",
        "An iteration of Sandblaster with a slow replica, beside one in which all are busy to the end.",
        training.measure_stragglers,
    ),
    Benchmark(
        "defaults",
        "cutset bench defaults",
        "Test accuracy of every method with its defaults alone, beside one process.",
        training.measure_defaults,
    ),
    Benchmark(
        "methods",
        "cutset bench methods --data mnist:DIR",
        "Every method on MNIST, beside DistributedDataParallel on gloo and one process.",
        training.measure_methods,
        needs=("data",),
    ),
)
NAMES = tuple(benchmark.name for benchmark in BENCHMARKS)


def find_benchmarks(names: Sequence[str]) -> tuple[Benchmark, ...]:
    """Return the benchmarks of these names, in the order of the page; all without names.

    Raises UsageError (E286) for a name that there is not.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError("E286", f"there is no benchmark {unknown[0]}, but {', '.join(NAMES)}", fix=NAMES[0])
    return tuple(one for one in BENCHMARKS if not names or one.name in names)
