"""`cutset eval`: how well a trained model does on a split, cut over machines, its batches streaming through them."""

import os
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...errors import BadInput, UsageError
from ...partition.placement.placement_file import Placement
from ...partition.placement.placement_file import load as load_placement
from ...runtime.launcher.heartbeat import Beacon
from ...runtime.channel.channel import Channel
from ...runtime.launcher.launcher import Launcher, Role
from ...runtime.channel.mailbox import Mailbox
from ...runtime.worker.leaf_modules import OwnModules
from ...runtime.worker.uncut_worker import PlainWorker
from ...runtime.worker.program import Program
from ...runtime.worker.worker import Worker
from ..task import weight_source as weights
from ..task.capture_task import Captured, captured
from ..job.run_config import worker_name
from ..task.load_task import TaskSpec, build_model, load_task, read_split
from ..task.plan_task import Wanted, compiled, matched, planned, traced_as
from ..job.prepare import FAILS_UNTRACED, PLACEMENT, UNTRACEABLE
from ..job.export_weights import save_state
from .accuracy import right_answers, right_answers_uncut
from .worker_process import WAIT_S
from ..task.meta_model import own_buffers, weightless

EVALUATING = "cutset.tools.training.evaluate:evaluating"


class Setup(msgspec.Struct, frozen=True):
    """One machine. program: msgpack of its evaluation Program, empty where the model runs uncut.

    weights, made: where the trained tensors are, and those that the model's code makes.
    """

    spec: TaskSpec
    split: str
    batch: int
    weights: str
    made: str
    program: bytes = b""
    peers: list[str] = []


def evaluate(
    spec: TaskSpec, source: Path, *, wanted: Wanted, placement: Placement | None = None, split: str = "test"
) -> dict[str, Any]:
    """Right answers, accuracy, seconds and samples a second of a checkpoint on a split.

    source: a run folder, a checkpoint's folder or a safetensors file. placement: the cut to use, by default that of the
    run folder, where `wanted` asks for no other number of machines. Raises CheckpointError where the weights are not
    those of the task.
    """
    if placement is None and wanted == Wanted() and (source / PLACEMENT).is_file():
        placement = load_placement(source / PLACEMENT)
    spec = traced_as(placement, spec)
    if placement is not None and spec.batch is None:
        spec = msgspec.structs.replace(spec, batch=placement.batch)
    wanted = wanted if wanted != Wanted() else Wanted(machines=1)
    ready = _captured(spec, alone=placement is None and wanted.machines == 1)
    programs: Sequence[Program] = []
    if ready is not None:
        placement = placement or planned(ready, spec, wanted)
        programs = compiled(ready, matched(ready, placement))[1]
    found = _run(spec, source, ready, programs, split)
    return {
        "task": spec.model,
        "weights": str(source),
        "split": split,
        "machines": max(1, len(programs)),
        "plan": placement.winner if placement is not None else "uncut",
        **found,
        "accuracy": found["right"] / found["samples"],
        "samples_per_s": found["samples"] / found["seconds"],
    }


def _captured(spec: TaskSpec, *, alone: bool) -> Captured | None:
    """The task's graphs; None where it cannot be traced and need not be."""
    try:
        return captured(spec, advise=not alone)
    except BadInput as error:
        if error.code not in (UNTRACEABLE, FAILS_UNTRACED) or not alone:
            raise
        return None


def _run(
    spec: TaskSpec, source: Path, ready: Captured | None, programs: Sequence[Program], split: str
) -> dict[str, Any]:
    task = load_task(spec)
    names = [worker_name(0, machine) for machine in range(max(1, len(programs)))]
    with tempfile.TemporaryDirectory(prefix="cutset-eval-") as folder:
        made = dict(ready.constants) if ready is not None else {}
        with weights.opened(source) as found:
            lacking = [name for name in own_buffers(task) if found.shape(name) is None]
            if lacking:  # a plain state_dict leaves out buffers that are not persistent
                made |= {n: b for n, b in build_model(task, seed=0).named_buffers() if n in lacking}
            weights.demand(found, programs, made, where=source)
        path = save_state(Path(folder) / "made.safetensors", made)
        batch = ready.batch if ready is not None else spec.batch or task.batch
        setup = Setup(spec, split, batch, str(source.resolve()), str(path), peers=names)
        setups = [msgspec.structs.replace(setup, program=msgspec.msgpack.encode(program)) for program in programs]
        return _launched(names, setups or [setup])


def _launched(names: Sequence[str], setups: Sequence[Setup]) -> dict[str, Any]:
    threads = max(1, (os.cpu_count() or 1) // len(names))
    roles = [
        Role(name, EVALUATING, msgspec.to_builtins(setup, builtin_types=(bytes,)), threads=threads)
        for name, setup in zip(names, setups, strict=True)
    ]
    with Launcher(roles, job=f"eval-{uuid.uuid4().hex[:12]}") as launcher:
        results: list[dict[str, Any]] = launcher.run()
    (found,) = [result for result in results if result["right"] is not None]
    return {**found, "seconds": max(result["seconds"] for result in results)}


def evaluating(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """One machine's part: right answers (None where another has the output), samples and seconds."""
    given = msgspec.convert(setup, Setup)
    task = load_task(given.spec)
    samples = read_split(task, given.split)
    with weights.opened(Path(given.weights)) as trained, weights.opened(Path(given.made)) as made:
        values = weights.Both(trained, made)
        if given.program:
            program = msgspec.msgpack.decode(given.program, type=Program)
            own = OwnModules.where_needed([program], lambda: weightless(task))
            worker = Worker(program, Mailbox(channel, timeout_s=WAIT_S), given.peers, own=own)
            weights.load(worker.states, values)
            begin = time.monotonic()
            right = right_answers(worker, task, samples, 0)
        else:
            model = build_model(task, seed=0)
            weights.load_whole(model, values, where=Path(given.weights))
            plain = PlainWorker(model, task.loss, autocast=given.spec.autocast)
            begin = time.monotonic()
            right = right_answers_uncut(plain, task, samples, given.batch)
    return {"right": right, "samples": len(samples), "seconds": time.monotonic() - begin}


def check_split(split: str) -> str:
    """A split's name; UsageError where tasks have none such."""
    if split not in ("train", "test"):
        raise UsageError("E217", f"no split {split!r}; there are train and test", fix="--split test")
    return split
