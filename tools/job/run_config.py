"""What the processes of a run are told as they start, and how workers are named."""

import msgspec

from ...ps.slices.compression import AnyCompression
from ...ps.checkpoint.journal import Keeping
from ...ps.slices.slicing import Slice
from ...ps.methods.method import Serving
from ...ps.methods.registry import AnyMethod
from ...ps.slices.region import Region
from ...ps.optimizers.registry import AnyRule
from ...runtime.worker.flat_gradient import Table
from ...runtime.worker.schedule import DATAFLOW
from ..task.load_task import TaskSpec


class Course(msgspec.Struct, frozen=True):
    """What all trainers of a run share.

    batch: samples of a step; micro_batch: of each of the parts in which a cut model computes it, one after the other.
    steps: of each replica. evaluate_every: steps between two tests, 0 for the end only. initial: file of the first
    weights. schedule: name of the order in which micro-batches run. clip_norm: the most that the norm of all gradients
    of a step may be, 0 for no limit. tables: of an uncut model's flat parameters, of which steps touch some rows only.
    first: the step that the replicas begin with, more than 0 where the run goes on from a checkpoint; version: that the
    shards have then; memories: files with what the rule remembers of the whole parameters then. checkpoint_every: steps
    of each replica between two checkpoints, 0 for none but the last; folder: of the run. checkpoint_s: seconds between
    two, 0 where they go by steps; else of those by steps only the ones are made that the launcher asks for (timing.py).
    samples: that there are to train on.
    """

    spec: TaskSpec
    batch: int
    micro_batch: int
    seed: int
    replicas: int
    steps: int
    evaluate_every: int
    initial: str
    schedule: str = DATAFLOW
    clip_norm: float = 0.0
    tables: list[Table] = []
    first: int = 0
    version: int = 0
    memories: dict[str, str] = {}
    checkpoint_every: int = 0
    folder: str = ""
    checkpoint_s: float = 0.0
    samples: int = 0

    @property
    def batches(self) -> int:
        """Of all replicas together."""
        return self.steps * self.replicas

    def checkpoint(self, reached: int) -> int:
        """The number of the last checkpoint that is due when all replicas have come to so many batches."""
        return reached // (self.checkpoint_every * self.replicas) if self.checkpoint_every else 0


class WorkerSetup(msgspec.Struct, frozen=True):
    """One worker. program, evaluation: msgpack of its Programs; empty where the model is trained uncut.

    times: how often its replica was started again; first: the step that it begins with. compression: of its pushes.
    regions: where its parameters lie.
    """

    course: Course
    replica: int
    machine: int
    machines: int
    program: bytes
    evaluation: bytes
    slices: list[Slice]
    method: AnyMethod
    rule: AnyRule
    times: int = 0
    first: int = 0
    compression: AnyCompression | None = None
    regions: list[Region] = []


class ShardSetup(msgspec.Struct, frozen=True):
    """One shard. times: how often it was started again."""

    index: int
    slices: list[Slice]
    serving: Serving
    keeping: Keeping
    times: int = 0


class BaselineSetup(msgspec.Struct, frozen=True):
    """The one-process run with the same samples, rule and initial weights."""

    course: Course
    rule: AnyRule


def worker_name(replica: int, machine: int, times: int = 0) -> str:
    """The channel name of a worker whose replica was started again so many `times`; each time has its own."""
    return f"worker-{replica}.{machine}" + (f"+{times}" if times else "")


def shard_name(index: int, times: int = 0) -> str:
    """The channel name of a shard that was started again so many `times`."""
    return f"shard-{index}" + (f"+{times}" if times else "")
