"""`Job`: a training run that is ready to start, and what each of its workers is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...partition.cluster.machines import Cluster
from ...partition.placement.placement_file import Placement
from ...ps.methods.registry import AnyMethod
from ...ps.optimizers.registry import AnyOptimizer
from ...ps.server.serving import ServingConfig
from ...ps.slices.compression import AnyCompression
from ...ps.slices.region import Region
from ...ps.slices.slicing import ParameterSlice, slices_of_machine
from ...runtime.hosts.versions import read_cores
from ...runtime.worker.program import Program
from ..config.run_config import RunConfig
from ..run_folder import INITIAL
from ..task.plan_task import OtherSizes
from .process_specs import Script, TrainingSpec, WorkerSpec
from .stream_position import LoopPosition, StreamPosition

MAX_ROLES = 256  # processes of a run on one host
MAX_FLEET_ROLES = 4096  # processes of a run over machines, each of which has connections to the launcher


def most_roles(config: RunConfig) -> int:
    """Return how many processes a run may have, on this host or over the machines of its engine."""
    return MAX_ROLES if config.on is None else MAX_FLEET_ROLES


@dataclass(frozen=True)
class Job:
    """A run of which everything is settled: what `configure` returns, and the supervisors start roles from.

    config: the options as the user gave them; method, optimizer, compression: the objects that they name. shards: how
    many there are. programs, evaluations: by machine; empty where the model is trained whole, in plain torch. others:
    those for batches of other sizes. regions: by machine, where its trained parameters lie in its flat buffer; slices:
    how shards divide these buffers. names: from each name in the model's state_dict to the one that the run knows the
    tensor by; a tied tensor has several. notes: what the user should know. run: its number among the runs of its
    folder, which orders their checkpoints. stream: where it begins in its stream, if that is known. script: that keeps
    its own loop; loops: how that goes through its data, by replica. cluster:
    the machines that it was planned for, where they were measured for that.
    """

    config: RunConfig
    method: AnyMethod
    optimizer: AnyOptimizer
    compression: AnyCompression | None
    shards: int
    task_name: str
    placement: Placement | None
    training: TrainingSpec
    programs: Sequence[Program]
    evaluations: Sequence[Program]
    regions: list[list[Region]]
    slices: list[ParameterSlice]
    names: dict[str, str]
    notes: list[str] = field(default_factory=list)
    run: int = 1
    stream: StreamPosition | None = None
    script: Script | None = None
    loops: list[LoopPosition] = field(default_factory=list)
    others: OtherSizes = field(default_factory=OtherSizes)
    cluster: Cluster | None = None

    @property
    def out(self) -> Path:
        """The run folder."""
        return self.config.folder

    @property
    def machines(self) -> int:
        """Workers of a replica."""
        return len(self.regions)

    @property
    def leases_batches(self) -> bool:
        """Whether replicas are given batches as they need them; a script reads its own."""
        return self.method.leases_batches and self.script is None

    @property
    def replicas(self) -> int:
        """Replicas that the run starts with."""
        return self.training.replicas

    @property
    def checkpoint_versions(self) -> int:
        """Updates of the shards between two checkpoints, 0 for none."""
        every = self.training.checkpoint_every
        return self.method.count_updates(every, self.replicas) if every else 0

    @property
    def first_files(self) -> list[str]:
        """What every worker reads as it begins, by paths in the run folder."""
        masters = [self.training.masters] if self.training.masters else []
        return [INITIAL, *masters, *self.training.optimizer_state.values()]

    @property
    def serving(self) -> ServingConfig:
        """What its shards do."""
        training = self.training
        updates = 0 if training.is_open_ended else self.method.count_updates(training.steps, self.replicas)
        return msgspec.structs.replace(self.method.configure_shards(self.optimizer, self.replicas), updates=updates)

    @property
    def worker_threads(self) -> int:
        """Threads of torch in each worker."""
        return max(1, read_cores() // (self.machines * self.replicas))


def encode_programs(by_size: Sequence[Sequence[Program]], machine: int) -> list[bytes]:
    """Return a machine's programs as msgpack, one for each size; none where the model is whole."""
    return [msgspec.msgpack.encode(programs[machine]) for programs in by_size if programs]


def make_worker_spec(
    job: Job,
    replica: int,
    machine: int,
    incarnation: int,
    start_step: int = 0,
    *,
    local_state: str = "",
    training: TrainingSpec | None = None,
    loop: LoopPosition | None = None,
) -> WorkerSpec:
    """Return what one machine of a replica is told as it starts, after `incarnation` restarts of the replica.

    training: as it is where the machine is, by default as on this one. loop: as it
    is known by now.
    """
    needs_regions = (
        job.training.optimizer_state or job.training.masters or job.training.monitor is not None or job.script
    )
    return WorkerSpec(
        training=training or job.training,
        replica=replica,
        machine=machine,
        machines=job.machines,
        programs=encode_programs([job.programs, *job.others.programs], machine),
        evaluations=encode_programs([job.evaluations, *job.others.evaluations], machine),
        slices=slices_of_machine(job.slices, machine),
        method=job.method,
        optimizer=job.optimizer.of_machine(machine),
        incarnation=incarnation,
        start_step=max(start_step, job.training.start_step),
        compression=job.compression,
        regions=job.regions[machine] if needs_regions else [],
        local_state=local_state,
        script=job.script,
        loop=loop or (job.loops[replica] if job.loops else LoopPosition()),
    )
