"""The processes of a Sandblaster run: coordinator, vector shards, gradient workers, and torch's L-BFGS to compare."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...models.sample_stream import SampleStream
from ...models.task import Data
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...ps.methods.sandblaster import Sandblaster
from ...ps.sandblaster.coordinator import Coordinator
from ...ps.sandblaster.coordinator_loop import coordinate
from ...ps.sandblaster.gradient_worker import GradientWorker
from ...ps.sandblaster.recovery_log import RecoveryLog
from ...ps.sandblaster.solver import Portions
from ...ps.sandblaster.vector_shard import VectorShard, slice_initial_values
from ...ps.server.serve_loop import serve
from ...ps.slices.region import Region
from ...ps.slices.slicing import ParameterSlice
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.hosts.heartbeat import RoleProgress
from ..job.portion_size import FOLDER
from ..job.process_specs import TrainingSpec, WorkerSpec, worker_name
from ..leases.batch_assignment import REPLICA_TIMEOUT_S
from ..replica.model_part import CutModelPart, ModelPart, UncutModelPart
from ..replica.replica_state import write_final_state
from ..run_folder import INITIAL
from ..samples.dataset_samples import Samples
from ..samples.read_samples import read_split
from ..task.load_task import load_task

COORDINATOR, SHARD, WORKER, BASELINE = (
    f"{__name__}:{name}" for name in ("run_coordinator", "run_shard", "run_worker", "run_torch_baseline")
)
RECOVERY_LOG = "operations.jsonl"


class CoordinatorSpec(msgspec.Struct, frozen=True):
    """The coordinator.

    Attributes:
        portion: samples of a portion.
        folder: of the run, where the recovery log is.
        run: what must be the same for a run to resume from the log.
    """

    method: Sandblaster
    samples: int
    portion: int
    shards: list[str]
    replicas: int
    machines: int
    folder: str
    run: dict[str, Any]


class VectorShardSpec(msgspec.Struct, frozen=True):
    """A shard. regions: where each machine's parameters lie. folder: of the run, where it keeps what it commits."""

    index: int
    slices: list[ParameterSlice]
    regions: list[list[Region]]
    samples: int
    portion: int
    folder: str


class GradientWorkerSpec(msgspec.Struct, frozen=True):
    """A worker. samples: the number of samples that the portions divide."""

    worker: WorkerSpec
    samples: int


class TorchBaselineSpec(msgspec.Struct, frozen=True):
    """torch.optim.LBFGS on the same samples. evaluations: the limit, also of iterations, which the other run made."""

    training: TrainingSpec
    method: Sandblaster
    samples: int
    evaluations: int


def run_coordinator(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Drive the method until the launcher tells it to finish."""
    spec = msgspec.convert(setup, CoordinatorSpec)
    portions = Portions(spec.samples, spec.portion)
    log = RecoveryLog(Path(spec.folder) / FOLDER / RECOVERY_LOG, spec.run)
    solver = spec.method.make_solver(portions)
    coordinator = Coordinator(solver, portions, log, spec.shards, replicas=spec.replicas, machines=spec.machines)
    channel.send(LAUNCHER, Message("serving"))
    try:
        return coordinate(coordinator, channel, progress)
    finally:
        log.close()


def run_shard(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Serve one shard until the launcher tells it to finish."""
    spec = msgspec.convert(setup, VectorShardSpec)
    machines = sorted({piece.machine for piece in spec.slices})
    folder = Path(spec.folder)
    values = {machine: read_initial_values(folder / INITIAL, spec.regions[machine]) for machine in machines}
    portions = Portions(spec.samples, spec.portion)
    shard = VectorShard(spec.index, spec.slices, portions, slice_initial_values(values), folder / FOLDER)
    channel.send(LAUNCHER, Message("serving"))
    return serve(shard, channel, folder=folder, progress=progress, timeout_s=REPLICA_TIMEOUT_S)


def run_worker(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Compute portions until the coordinator ends it; replica 0 also evaluates, and writes what the shards lack."""
    return _GradientWorkerProcess(channel, msgspec.convert(setup, GradientWorkerSpec), progress).run()


def run_torch_baseline(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Train the whole model in this process by torch.optim.LBFGS."""
    return _train_by_torch(channel, msgspec.convert(setup, TorchBaselineSpec), progress)


class _GradientWorkerProcess:
    """One machine's part of one replica."""

    def __init__(self, channel: Channel, spec: GradientWorkerSpec, progress: RoleProgress) -> None:
        worker, training = spec.worker, spec.worker.training
        self._channel, self._spec, self._training, self._role_progress = channel, worker, training, progress
        self._task = load_task(training.task)
        samples = read_split(self._task, "train")
        self._tests = read_split(self._task, "test") if worker.replica == 0 else None
        mailbox = Mailbox(channel, timeout_s=REPLICA_TIMEOUT_S)
        channel.send(LAUNCHER, Message("connected"))
        self._model_part: ModelPart = (
            CutModelPart(worker, self._task, mailbox)
            if worker.programs
            else UncutModelPart(training, self._task, training.seed)
        )
        names = [worker_name(worker.replica, machine, worker.incarnation) for machine in range(worker.machines)]
        leader = "" if worker.machine == 0 else names[0]
        model_part, portions = self._model_part, Portions(spec.samples, training.batch)
        data = PortionData(samples, portions, training.seed)
        self._worker = GradientWorker(
            mailbox,
            worker.slices,
            model_part.values,
            model_part.gradient,
            lambda portion, step: model_part.step(data.read(portion), step),
            portions,
            coordinator="coordinator",
            leader=leader,
            followers=() if leader else names[1:],
            progress=self._report_progress,
        )

    def run(self) -> dict[str, Any]:
        """Work until the end; return the worker's result."""
        self._worker.run()
        if self._tests is not None:
            self._finish(self._tests)
        worker = self._worker
        return {"portions": worker.portions_done, "bytes_in": worker.bytes_in, "bytes_out": worker.bytes_out}

    def _report_progress(self, done: int | None) -> None:
        self._role_progress.value = None if done is None else f"portion {done}"

    def _finish(self, tests: Samples) -> None:
        self._role_progress.value = None  # an evaluation may take long; the launcher must not take it for being stuck
        self._worker.fetch_parameters()
        scores = self._model_part.score(self._task, tests, self._training.micro_batch)
        point = None if scores is None else scores.to_point()
        self._channel.send(LAUNCHER, Message("trained", body={"scores": point}))
        body = self._worker.wait_for_launcher("all_trained")
        folder = self._training.folder
        write_final_state(self._channel, folder, body["path"], self._spec.machine, self._model_part.state)
        self._worker.wait_for_launcher("kept")


class PortionData:
    """The samples of each portion, which divide one permutation of all samples, drawn from the seed."""

    def __init__(self, samples: Samples, portions: Portions, seed: int) -> None:
        self._samples, self._portions = samples, portions
        self._stream = SampleStream(len(samples), batch=portions.size, seed=seed)

    def read(self, portion: int) -> Data:
        """Return the samples of a portion."""
        count = self._portions.count_samples(portion, portion + 1)
        return self._samples.rows(self._stream.indices(portion)[:count])


def read_initial_values(path: Path, regions: Sequence[Region]) -> Tensor:
    """Return a machine's flat parameters [n] from a file of whole tensors."""
    with TensorReader(path) as reader:
        dtypes = {reader.layouts[region.name][0] for region in regions}
        values = torch.zeros(max(region.stop for region in regions), dtype=dtypes.pop())
        for region in regions:
            part = values[region.offset : region.stop].view(region.sizes)
            reader.fill(part, region.name, region.axes, tuple(region.box))
    return values


def _train_by_torch(channel: Channel, spec: TorchBaselineSpec, progress: RoleProgress) -> dict[str, Any]:
    training, method = spec.training, spec.method
    task = load_task(training.task)
    samples, tests = read_split(task, "train"), read_split(task, "test")
    model_part = UncutModelPart(training, task, training.seed)
    portions = Portions(spec.samples, training.batch)
    data, losses = PortionData(samples, portions, training.seed), list[float]()
    values = torch.nn.Parameter(model_part.values)  # the same memory

    def evaluate() -> float:
        """Compute the objective f(w) = mean loss + l2/2 |w|^2 and its gradient, portion by portion."""
        total, loss = torch.zeros_like(model_part.gradients), 0.0
        for portion in range(portions.count):
            model_part.gradient.zero()
            portion_loss = model_part.step(data.read(portion), len(losses))
            count = portions.count_samples(portion, portion + 1)
            assert portion_loss is not None
            total.add_(model_part.gradients, alpha=count)
            loss += portion_loss * count
            progress.value = f"evaluation {len(losses)}, portion {portion}"
        loss = loss / portions.samples + method.l2 / 2 * float(torch.dot(model_part.values, model_part.values))
        values.grad = total.div_(portions.samples).add_(model_part.values, alpha=method.l2)
        losses.append(loss)
        body = {"step": len(losses), "steps": spec.evaluations, "loss": loss}
        body |= {"samples": len(losses) * portions.samples, "seconds": time.monotonic() - begin}
        channel.send(LAUNCHER, Message("progress", body=body))
        return loss

    optimizer = method.make_torch_optimizer(values, spec.evaluations)
    begin = time.monotonic()
    optimizer.step(evaluate)  # type: ignore[no-untyped-call]
    seconds = time.monotonic() - begin
    evaluations, loss = len(losses), evaluate()
    scores = model_part.score(task, tests, training.batch)
    assert scores is not None  # the model is whole
    return {"seconds": seconds, "evaluations": evaluations, "loss": loss, "scores": scores.to_point()}
