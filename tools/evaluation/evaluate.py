"""`evaluate`: how well a trained model does on a split; its batches stream through the machines that it is cut over."""

import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from ...errors import BadInput, UsageError
from ...models.task import Task
from ...partition.placement.placement_file import Placement
from ...partition.placement.placement_file import load as load_placement
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.hosts.host import Role
from ...runtime.hosts.versions import read_cores
from ...runtime.launcher.launcher import Launcher
from ...runtime.replica.sized_workers import SizedWorkers
from ...runtime.worker.leaf_modules import LeafModules
from ...runtime.worker.program import Program
from ...runtime.worker.uncut_worker import UncutWorker
from ..job.job import encode_programs
from ..job.process_specs import worker_name
from ..job.resume import find_checkpoint
from ..open_files import allow_open_files
from ..run_folder import CHECKPOINT, PLACEMENT
from ..samples.read_samples import read_samples, read_split
from ..task import weight_source as weights
from ..task.capture_task import CapturedTask, capture_task, try_to_capture
from ..task.load_task import TaskSpec, build_model, load_task
from ..task.meta_model import build_step, build_without_weights, non_persistent_buffers
from ..task.plan_request import PlanRequest
from ..task.plan_task import OtherSizes, compile_other_sizes, compile_programs, load_cut, plan_task, with_placement
from ..task.scores import Scores, score, score_uncut
from ..tensor_files import save_state

EVALUATION_WORKER = f"{__name__}:run_evaluation_worker"
MESSAGE_TIMEOUT_S = 600.0  # for a message of a peer; the launcher finds a dead or hanging peer long before


class EvaluationSpec(msgspec.Struct, frozen=True):
    """What one machine evaluates.

    Attributes:
        weights: path of the trained tensors. averaged: their moving average is evaluated.
        constants: path of the tensors that the model's code makes.
        programs: msgpack of its evaluation Programs by size of a batch, empty if the model is not cut.
        peers: the names of all machines.
    """

    spec: TaskSpec
    split: str
    batch: int
    weights: str
    constants: str
    averaged: bool
    programs: list[bytes] = []
    peers: list[str] = []


def evaluate(
    spec: TaskSpec,
    source: Path,
    *,
    request: PlanRequest,
    placement: Placement | None = None,
    split: str = "test",
    averaged: bool = False,
) -> dict[str, Any]:
    """Return the scores, seconds and samples per second of a checkpoint on a split.

    Args:
        source: a run folder, a checkpoint folder or a safetensors file.
        request: the plan, if there is no `placement`.
        placement: the cut to use; by default that of the run folder, unless `request` asks for a number of machines.
        averaged: evaluate the moving average of the weights.

    Raises:
        CheckpointError: there are no weights, which is found before all else, or not those of the task.
        UsageError: there is no moving average.
    """
    weights.check_source(source)
    if placement is None and request == PlanRequest() and (source / PLACEMENT).is_file():
        placement = load_placement(source / PLACEMENT)
    spec = with_placement(placement, spec)
    if placement is not None and spec.batch is None:
        spec = msgspec.structs.replace(spec, batch=placement.batch)
    request = request if request != PlanRequest() else PlanRequest(machines=1)
    capture = _capture(spec, alone=placement is None and request.machines == 1)
    programs: Sequence[Program] = []
    others = OtherSizes()
    if capture is not None:
        if placement is None:
            planned = plan_task(capture, spec, request)
            placement, capture = planned.placement, planned.capture
        cut = load_cut(capture, placement)
        programs = compile_programs(capture, cut)[1]
        if len(programs) > 1:
            others = compile_other_sizes(capture, spec, cut, read_samples(capture.task, split), training=False)
    saved = source if source.is_file() else find_checkpoint(source).folder
    evaluated = EvaluatedModel(spec, saved, averaged, capture, programs, others)
    counts = _run(evaluated, split)
    return {
        "task": spec.model,
        "weights": str(source if saved in (source, source / CHECKPOINT) else saved),
        "split": split,
        "machines": max(1, len(programs)),
        "plan": placement.winner if placement is not None else "uncut",
        **counts,
        "samples_per_s": counts["samples"] / counts["seconds"],
    }


def _capture(spec: TaskSpec, *, alone: bool) -> CapturedTask | None:
    """Capture the task's graphs; return None if it cannot be traced and runs alone, so that it need not be."""
    if not alone:
        return capture_task(spec)
    capture = try_to_capture(spec)
    return None if isinstance(capture, BadInput) else capture


@dataclass(frozen=True)
class EvaluatedModel:
    """What is evaluated: a task with weights from `source`, or with their average, and its programs by machine.

    programs: of the planned size, none where the model cannot be traced. A single one is not run, as plain torch does
    as well, and takes samples of any length. others: those of other sizes.
    """

    spec: TaskSpec
    source: Path
    averaged: bool
    capture: CapturedTask | None
    programs: Sequence[Program]
    others: OtherSizes


def _run(model: EvaluatedModel, split: str) -> dict[str, Any]:
    """Write the constants to a file, start a process for each machine, and return the counts."""
    spec, source, capture, programs, others = model.spec, model.source, model.capture, model.programs, model.others
    task = load_task(spec)
    names = [worker_name(0, machine) for machine in range(max(1, len(programs)))]
    with tempfile.TemporaryDirectory(prefix="cutset-eval-") as folder:
        constants = dict(others.constants) | (capture.constants if capture is not None else {})
        with weights.open_weights(source, averaged=model.averaged) as trained:
            missing = [name for name in non_persistent_buffers(task) if trained.shape(name) is None]
            if missing:  # a plain state_dict leaves out buffers that are not persistent
                constants |= {n: b for n, b in build_model(task, seed=0).named_buffers() if n in missing}
            weights.check_weights(
                trained, [*programs, *chain.from_iterable(others.evaluations)], constants, where=source
            )
            if len(programs) == 1:
                constants |= _make_unused(task, trained, constants)
        path = save_state(Path(folder) / "constants.safetensors", constants)
        batch = capture.batch if capture is not None else spec.batch or task.batch
        where = str(source.resolve())
        machine = EvaluationSpec(spec, split, batch, where, str(path), model.averaged, peers=names)
        machines = [
            msgspec.structs.replace(machine, programs=encode_programs([programs, *others.evaluations], number))
            for number in range(len(programs))
        ]
        return _launch(names, machines if len(programs) > 1 else [machine])


def _make_unused(task: Task, trained: weights.Weights, constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a checkpoint lacks as no operator uses it; a whole model has it all the same."""
    model = build_without_weights(task)
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    unused = {name for name in names if trained.shape(name) is None and name not in constants}
    if not unused:
        return {}
    built = build_model(task, seed=0)
    return {n: t.detach() for n, t in (*built.named_parameters(), *built.named_buffers()) if n in unused}


def _launch(names: Sequence[str], machines: Sequence[EvaluationSpec]) -> dict[str, Any]:
    allow_open_files(len(names))
    threads = max(1, read_cores() // len(names))
    roles = [
        Role(name, EVALUATION_WORKER, msgspec.to_builtins(machine, builtin_types=(bytes,)), threads=threads)
        for name, machine in zip(names, machines, strict=True)
    ]
    with Launcher(roles, job=f"eval-{uuid.uuid4().hex[:12]}") as launcher:
        results: list[dict[str, Any]] = launcher.run()
    (scores,) = [result["scores"] for result in results if result["scores"] is not None]
    return {**scores, "seconds": max(result["seconds"] for result in results)}


def run_evaluation_worker(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Evaluate one machine's part; return the scores (None if another machine has the output) and seconds."""
    spec = msgspec.convert(setup, EvaluationSpec)
    task = load_task(spec.spec)
    samples = read_split(task, spec.split, one_shape=bool(spec.programs))
    with (
        weights.open_weights(Path(spec.weights), averaged=spec.averaged) as trained,
        weights.open_weights(Path(spec.constants)) as constants,
    ):
        values = weights.FallbackWeights(trained, constants)
        if spec.programs:
            workers = _build_workers(spec, task, channel)
            weights.load_pieces(workers.first.states, values)
            start = time.monotonic()
            scores = score(workers, task, samples, 0, autocast=spec.spec.autocast)
        else:
            model = build_model(task, seed=0)
            weights.load_model(model, values, where=Path(spec.weights))
            uncut = UncutWorker(model, task.loss, autocast=spec.spec.autocast)
            start = time.monotonic()
            scores = score_uncut(uncut, task, samples, spec.batch)
    return {"scores": None if scores is None else _to_plain(scores), "seconds": time.monotonic() - start}


def _build_workers(spec: EvaluationSpec, task: Task, channel: Channel) -> SizedWorkers:
    found = [msgspec.msgpack.decode(one, type=Program) for one in spec.programs]
    leaf_modules = LeafModules.where_needed(found, lambda: build_step(task))
    mailbox = Mailbox(channel, timeout_s=MESSAGE_TIMEOUT_S)
    return SizedWorkers(found, mailbox, spec.peers, leaf_modules=leaf_modules)


def _to_plain(scores: Scores) -> dict[str, Any]:
    counts = {"samples": scores.samples, "correct": scores.correct, "accuracy": scores.accuracy}
    return {**counts, "loss": scores.loss, "metrics": scores.metrics}


def check_split(split: str) -> str:
    """Return the name of a split; raise UsageError if tasks have no such split."""
    if split not in ("train", "test"):
        raise UsageError("E217", f"no split {split!r}; there are train and test", fix="--split test")
    return split
