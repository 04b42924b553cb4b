"""What the processes of a run are told as they start, and how workers and shards are named."""

import uuid
from pathlib import Path

import msgspec

from ...ps.checkpoint.journal import JournalConfig
from ...ps.methods.registry import AnyMethod
from ...ps.optimizers.rates import RatedOptimizer
from ...ps.optimizers.registry import AnyOptimizer
from ...ps.server.serving import ServingConfig
from ...ps.slices.compression import AnyCompression
from ...ps.slices.region import Region
from ...ps.slices.slicing import ParameterSlice
from ...runtime.worker.flat_gradient import SparseTable
from ...runtime.worker.schedule import DATAFLOW
from ..config.monitor import Monitor
from ..run_folder import INITIAL
from ..task.load_task import TaskSpec
from ..units import OPEN_ENDED
from .stream_position import LoopPosition


class TrainingSpec(msgspec.Struct, frozen=True):
    """What all that train in a run are told.

    batch: samples of a step; micro_batch: of each of the parts in which a cut model computes it, one after the other.
    steps: of each replica. evaluate_every: steps between two tests, 0 for the end only. folder: that of the run on the
    machine of the process, where all of its files are. schedule: name of the order in which micro-batches run.
    clip_norm: limit of the norm of all gradients of a step, 0 for none. tables: of a whole model's flat parameters, of
    which steps touch some rows only.

    start_step: the step that the replicas begin with, more than 0 where the run resumes from a checkpoint; version:
    that of the shards then; optimizer_state: by name, files with what the optimizer remembers of the whole parameters
    then; masters: the file of the parameters then, where `initial` has some of them rounded, else "". first_sample: how
    many come before batch 0, where the run had steps of another size before, and all of its samples are no whole ones.

    checkpoint_every: steps of each replica between two checkpoints, 0 for none but the last; checkpoint_s: seconds
    between two, 0 where they go by steps. Where they go by time, only those are made of which the launcher tells all in
    advance (checkpoint_timing.py). samples: that an epoch has, 0 where nobody knows. `steps` is OPEN_ENDED then, and
    where a script keeps its own loop.

    monitor: tells the best weights, which are kept, and may end the training; may_stop: it may end early for another
    reason. parts: of a stream, 0 where samples are numbered; epochs: of it.
    """

    task: TaskSpec
    batch: int
    micro_batch: int
    seed: int
    replicas: int
    steps: int
    evaluate_every: int
    folder: str
    schedule: str = DATAFLOW
    clip_norm: float = 0.0
    tables: list[SparseTable] = []
    start_step: int = 0
    first_sample: int = 0
    version: int = 0
    optimizer_state: dict[str, str] = {}
    masters: str = ""
    checkpoint_every: int = 0
    checkpoint_s: float = 0.0
    samples: int = 0
    monitor: Monitor | None = None
    may_stop: bool = False
    parts: int = 0
    epochs: int = 1

    @property
    def is_open_ended(self) -> bool:
        """Whether nobody knows how many steps there are."""
        return self.steps == OPEN_ENDED

    @property
    def initial(self) -> Path:
        """The file of the first weights."""
        return Path(self.folder) / INITIAL

    @property
    def batches(self) -> int:
        """Batches of all replicas together."""
        return self.steps * self.replicas

    @property
    def awaits_verdicts(self) -> bool:
        """Whether what follows after an evaluation is said by the launcher (tools/selection/verdicts.py)."""
        return self.monitor is not None or self.may_stop

    def checkpoint(self, reached: int) -> int:
        """Return the number of the last checkpoint that is due when all replicas have come to so many batches."""
        return reached // (self.checkpoint_every * self.replicas) if self.checkpoint_every else 0


class Script(msgspec.Struct, frozen=True):
    """A script of the user that keeps its own training loop. path: of it, absolute; arguments: that it is given."""

    path: str
    arguments: list[str] = []


class WorkerSpec(msgspec.Struct, frozen=True):
    """What one worker is told: one machine of one replica.

    programs, evaluations: msgpack of its Programs by size of a batch, the planned one first; empty where the model is
    trained whole. incarnation: how often its replica was restarted; start_step: the step that it begins with.
    compression: of its pushes. regions: where its parameters lie. local_state: file in the folder of the run with what
    it had alone at a recovery point, "" if there is none. script: what it runs where the user keeps the loop; loop: how
    that goes through its data, as far as it is known.
    """

    training: TrainingSpec
    replica: int
    machine: int
    machines: int
    programs: list[bytes]
    evaluations: list[bytes]
    slices: list[ParameterSlice]
    method: AnyMethod
    optimizer: AnyOptimizer
    incarnation: int = 0
    start_step: int = 0
    compression: AnyCompression | None = None
    regions: list[Region] = []
    local_state: str = ""
    script: Script | None = None
    loop: LoopPosition = LoopPosition()


class ShardSpec(msgspec.Struct, frozen=True):
    """What one shard is told.

    incarnation: how often it was restarted. restore_from: the file in the folder of the run that it continues from, if
    that exists. steps: that every replica has taken then; by default those that the file has.
    """

    index: int
    slices: list[ParameterSlice]
    serving: ServingConfig
    journal_config: JournalConfig
    incarnation: int = 0
    restore_from: str = ""
    steps: int | None = None


class BaselineSpec(msgspec.Struct, frozen=True):
    """What the one-process run is told, which has the same samples, optimizer, groups and initial weights."""

    training: TrainingSpec
    optimizer: RatedOptimizer
    groups: list[str] = []


def replica_group(replica: int) -> str:
    """Return the name of the group of a replica's workers."""
    return f"replica {replica}"


def shard_group(index: int) -> str:
    """Return the name of the group of a shard."""
    return f"shard {index}"


def worker_name(replica: int, machine: int, incarnation: int = 0) -> str:
    """Return the channel name of a worker; each incarnation of its replica has another."""
    return f"worker-{replica}.{machine}" + (f"+{incarnation}" if incarnation else "")


def shard_name(index: int, incarnation: int = 0) -> str:
    """Return the channel name of a shard; each incarnation has another."""
    return f"shard-{index}" + (f"+{incarnation}" if incarnation else "")


def unique_job_name() -> str:
    """Return a name that no other job has, for the sockets of its processes."""
    return f"cutset-{uuid.uuid4().hex[:12]}"
