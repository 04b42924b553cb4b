"""`ResumeState`: what a run that resumes from a checkpoint begins with: weights, the optimizer's state, its progress.

Both are written as whole tensors, so that the run may have other shards, replicas and machines than the one before.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from ...errors import BadInput, CheckpointError, UsageError
from ...ps.checkpoint.journal import list_checkpoint_folders
from ...ps.checkpoint.manifest import MANIFEST
from ...ps.checkpoint.read_checkpoint import OTHER_FORMAT, Checkpoint, open_checkpoint, read_manifest
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...ps.methods.registry import AnyMethod
from ...ps.optimizers.registry import AnyOptimizer
from ..run_folder import BEST, BEST_WEIGHTS
from ..task.hub_layout import find_hub_files, join_hub_files
from ..tensor_files import new_file
from .checkpoint_order import RunProgress, order_checkpoints, read_progress
from .export_weights import BEST_KEY, copy_whole
from .stream_position import LOOPS, LoopPosition, StreamPosition

WEIGHTS, STATE = "resumed.safetensors", "resumed-{}.safetensors"
COUNTED_TWICE = "in an epoch that had begun some samples count twice, and some not at all"
MAX_NAMED = 5  # parameters, at most, that an error lists


@dataclass(frozen=True)
class ResumeState:
    """What a checkpoint says and holds.

    folder: what the user has named. progress: how far the run was. weights: a file of whole
    tensors by name; optimizer_state: by name, such files of what the optimizer remembers of the trained parameters,
    whose names are `trained`. notes: on checkpoints passed over. stream: where the run was in its stream; loops:
    how its script went through its data, by replica.
    """

    folder: Path
    progress: RunProgress
    weights: Path
    optimizer_state: dict[str, Path]
    trained: frozenset[str]
    notes: Sequence[str] = ()
    stream: StreamPosition | None = None
    loops: Sequence[LoopPosition] = ()

    @property
    def samples(self) -> int:
        """How many all replicas together had trained on."""
        return self.progress.samples


def find_checkpoint(path: Path, *, on_notice: Callable[[str], object] = lambda notice: None) -> Checkpoint:
    """Return the checkpoint in a folder, or the last one of a run folder (checkpoint_order.py).

    on_notice: called with a sentence about each checkpoint whose manifest is damaged, and which is passed over.
    CheckpointError where there is none, or files of the last one are damaged: that names the one before, which is not
    taken unasked.
    """
    if (path / MANIFEST).exists():
        return open_checkpoint(path)
    complete = order_checkpoints(path)
    other_format = next((error for error in complete.errors if error.code == OTHER_FORMAT), None)
    if other_format is not None:  # it may well be the last one
        raise other_format
    if not complete.folders:
        if complete.errors:
            raise complete.errors[-1]
        begun = list_checkpoint_folders(path)
        there = f"; {len(begun)} were begun there, of which none was written to the end" if begun else ""
        raise CheckpointError(
            "E801",
            f"{path} has no complete checkpoint{there}",
            fix="name a run folder that has one, or a folder that holds manifest.json",
        )
    for notice in complete.notices:
        on_notice(notice)
    *older, last = complete.folders
    try:
        return open_checkpoint(last)
    except CheckpointError as error:
        if not older:
            raise
        raise CheckpointError(error.code, error.facts, fix=f"name {older[-1]}, the one before") from error


def load_resume_state(resume: Path, out: Path, *, method: AnyMethod, optimizer: AnyOptimizer, seed: int) -> ResumeState:
    """Read the checkpoint that a run resumes from, and write what it begins with into its folder `out`.

    Raises UsageError where it was made with another method, optimizer or seed, CheckpointError where it is damaged.
    """
    notes = list[str]()
    checkpoint = find_checkpoint(resume, on_notice=notes.append)
    _check_origin(resume, checkpoint.manifest.about, method, optimizer, seed)
    progress = read_progress(checkpoint.folder, checkpoint.manifest)
    files = {name: _write_whole(checkpoint, out / STATE.format(name), name) for name in checkpoint.state_names()}
    weights = _write_whole(checkpoint, out / WEIGHTS)
    about, trained = checkpoint.manifest.about, frozenset(checkpoint.trained_names)
    stream, loops = _read_stream(resume, about, method), _read_loops(resume, about)
    return ResumeState(resume, progress, weights, files, trained, notes, stream, loops)


def initial_weights_file(init: Path | None, out: Path, *, on_notice: Callable[[str], object]) -> Path | None:
    """Return the file of the weights to begin with, if any; those of several files are written into `out` first.

    init: a file, a run, a checkpoint, or a folder in the layout of Hugging Face's Hub.

    on_notice: as of `find_checkpoint`.
    """
    if init is None or not init.is_dir():
        return init
    files = find_hub_files(init)
    if files:
        return join_hub_files(files, out / WEIGHTS)
    return _write_whole(find_checkpoint(init, on_notice=on_notice), out / WEIGHTS)


def find_masters(state: ResumeState | None, initial: Path) -> str:
    """Return the name of the file with the parameters to resume with, "" where the first weights have its bits.

    initial: the file of those; parameters of fewer bits than a checkpoint has are rounded there.
    """
    if state is None:
        return ""
    with TensorReader(initial) as rounded, TensorReader(state.weights) as exact:
        is_same = all(rounded.layouts[name][0] == exact.layouts[name][0] for name in state.trained)
    return "" if is_same else state.weights.name


def describe_new_state(state: ResumeState | None, optimizer: AnyOptimizer) -> list[str]:
    """Return a remark on what the shards' optimizer remembers and a checkpoint does not have, as other options had."""
    has = set[str]() if state is None else set(state.optimizer_state)
    new = [] if state is None else sorted(optimizer.init_state(torch.empty(0)).keys() - has)
    return [f"the checkpoint has no {' and '.join(new)} of the parameters, which begins anew"] if new else []


def describe_new_count(state: ResumeState | None, samples: int, *, in_passes: bool = False) -> list[str]:
    """Return a remark where the data has another number of samples than when the checkpoint was made, in an epoch.

    samples: of an epoch now, 0 if not known. in_passes: whether epochs are counted as such, and not by samples.
    """
    before = 0 if state is None else state.progress.epoch_samples
    if state is None or not before or not samples or before == samples:
        return []
    if not any(state.samples % count for count in ((before,) if in_passes else (before, samples))):
        return []
    facts = f"the data has {samples:,} samples now, not {before:,} as when the checkpoint was made"
    return [f"{facts}, so that they come in another order: {COUNTED_TWICE}"]


def remove_resumed(out: Path) -> None:
    """Remove the files that a run has resumed from, which it needs no more when it has ended well."""
    for path in (out / WEIGHTS, *out.glob(STATE.format("*"))):
        path.unlink(missing_ok=True)


def check_same_parameters(state: ResumeState | None, task: str, names: Set[str]) -> None:
    """Raise BadInput where the checkpoint is not of all the parameters that a run is to train, and of no others."""
    if state is None or state.trained == names:
        return
    kinds = {"has no": names - state.trained, "trains also": state.trained - names}
    how = "; ".join(f"{what} {', '.join(sorted(some)[:MAX_NAMED])}" for what, some in kinds.items() if some)
    raise other_model_error(state.folder, task, how)


def check_same_stream(state: ResumeState | None, parts: int, batch: int) -> None:
    """Raise UsageError where a run that resumes divides its samples in another way. parts: 0 of numbered samples."""
    before = None if state is None else state.stream
    if state is None or (before is None and not parts):
        return
    if before is None or (before.parts, before.batch) != (parts, batch):
        was = "numbered samples" if before is None else f"a stream of {before.parts} parts in batches of {before.batch}"
        now = f"a stream of {parts} parts in batches of {batch}" if parts else "numbered samples"
        facts = f"the checkpoint in {state.folder} is of a run on {was}; this one has {now}"
        raise UsageError("E289", facts, fix="the same data, parts=... of the task and --batch")


def _read_stream(folder: Path, about: Mapping[str, Any], method: AnyMethod) -> StreamPosition | None:
    """Return where a run was in its stream; CheckpointError where that is not known, of replicas that lease batches."""
    if "stream" not in about:
        return None
    try:
        stream = msgspec.convert(about["stream"], StreamPosition)
    except msgspec.ValidationError as error:
        raise CheckpointError("E802", f"the manifest of {folder} is damaged: {error}", fix="an older one") from error
    if method.leases_batches and stream.remaining is None:
        facts = (
            f"the checkpoint in {folder} was made when its run had ended early, and does not say where its stream was"
        )
        raise CheckpointError(
            "E803", facts, fix="an older checkpoint of the run; or --init with this one, to begin anew"
        )
    return stream


def _read_loops(folder: Path, about: Mapping[str, Any]) -> list[LoopPosition]:
    """Return how the script of a run went through its data, by replica; CheckpointError where that is damaged."""
    try:
        return msgspec.convert(about.get(LOOPS, []), list[LoopPosition])
    except msgspec.ValidationError as error:
        raise CheckpointError("E802", f"the manifest of {folder} is damaged: {error}", fix="an older one") from error


def other_model_error(folder: Path, task: str, how: str) -> BadInput:
    """Return the error of a checkpoint that differs from the model of a task. how: it "has no first.weight", say."""
    facts = f"the checkpoint in {folder} is not of the model of task {task}: it {how}"
    return BadInput("E319", facts, fix="name the task and the options of it that the checkpoint was made with")


def _write_whole(checkpoint: Checkpoint, path: Path, state: str = "") -> Path:
    """Write the whole tensors of a checkpoint, or optimizer state of those that are trained."""
    names = checkpoint.trained_names if state else checkpoint.names
    layouts = {name: (checkpoint.dtype(name), list(checkpoint.shape(name))) for name in names}
    with new_file(path, layouts) as writer:
        for name in names:
            copy_whole(checkpoint, name, writer, name, checkpoint.dtype(name), state=state)
    return path


def _check_origin(
    folder: Path, about: Mapping[str, Any], method: AnyMethod, optimizer: AnyOptimizer, seed: int
) -> None:
    """Raise UsageError where what a checkpoint was made by, as its manifest says, does not fit what is asked for."""
    missing = [name for name in ("samples", "optimizer", "seed", "method") if name not in about]
    if missing:
        facts = f"the manifest of {folder} does not say its {', '.join(missing)}"
        raise CheckpointError("E803", facts, fix="--init with its weights, to begin anew")
    if about["optimizer"] != optimizer.name:
        raise UsageError(
            "E282",
            f"the checkpoint was made with optimizer {about['optimizer']}, whose state is not that of {optimizer.name}",
            fix=f"--optimizer {about['optimizer']}, or --init with the run's model.safetensors to begin anew",
        )
    if about["method"] != method.name:
        raise UsageError(
            "E292",
            f"the checkpoint was made by method {about['method']}, whose shards remember other things than those of "
            f"{method.name}",
            fix=f"--method {about['method']}, or --init with the run's model.safetensors to begin anew",
        )
    if about["seed"] != seed:
        raise UsageError(
            "E283",
            f"the checkpoint was made with seed {about['seed']}; with {seed} samples come in another order",
            fix=f"--seed {about['seed']}",
        )


def carry_best(run: Path, staged: Path, score: str) -> float | None:
    """Copy the best weights of a run that is resumed in another folder, `staged`; return the value of their score.

    None where it has none of this score: then nothing is copied. UsageError where they cannot be written.
    """
    value = read_best_value(run, score)
    if value is None:
        return None
    try:
        if (run / BEST).is_dir():  # it was killed
            shutil.copytree(run / BEST, staged / BEST)
        if (run / BEST_WEIGHTS).is_file():
            shutil.copyfile(run / BEST_WEIGHTS, staged / BEST_WEIGHTS)
    except OSError as error:
        raise UsageError("E222", f"cannot write {staged}: {error}", fix="--out FOLDER with enough space") from error
    return value


def read_best_value(run: Path, score: str) -> float | None:
    """Return the best value of this score that a run has kept weights of; None if it has none."""
    abouts = list[dict[str, Any]]()
    with contextlib.suppress(CheckpointError):
        abouts.append(read_manifest(run / BEST).about)
    with contextlib.suppress(CheckpointError), TensorReader(run / BEST_WEIGHTS) as reader:
        abouts.append(json.loads(reader.metadata.get(BEST_KEY, "{}")))
    return next((float(about["value"]) for about in abouts if about.get("score") == score), None)
