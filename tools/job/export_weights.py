"""What a run leaves behind: its checkpoint, and the whole model as a plain state_dict, written a part at a time."""

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from ...partition.ir.box import whole
from ...ps.checkpoint.manifest import MANIFEST, Manifest, ShardFile, StateFile
from ...ps.checkpoint.read_checkpoint import Checkpoint, open_checkpoint
from ...ps.checkpoint.streamed_safetensors import TensorReader, TensorWriter
from ...ps.checkpoint.write_checkpoint import write_manifest
from ...ps.optimizers.parameter_groups import EMA
from ..run_folder import BEST, BEST_WEIGHTS, CHECKPOINT, EMA_WEIGHTS, WEIGHTS
from ..tensor_files import new_file
from .stream_position import Position, StreamPosition, describe_position

if TYPE_CHECKING:
    from .job import Job

NAMES = "names"  # in what a manifest says of the run: those of the state_dict, in the order of the model
BEST_KEY = "cutset.best"  # in the metadata of the file of the best weights
PART_BYTES = 16 << 20  # of a parameter that are put together at once


def describe_checkpoint(job: "Job", step: int, stream: Position | None = None) -> dict[str, Any]:
    """Return what the manifest of a checkpoint says of the run.

    step: that each replica has come to. stream: where a run is in its data beyond that.

    By "run" and "samples" the last checkpoint of a folder is known (checkpoint_order.py); "written" is for people.
    """
    if stream is None and job.training.parts:
        stream = StreamPosition(job.training.parts, job.training.batch)
    return {
        "task": job.config.task_name,
        "epochs": job.training.epochs,
        "run": job.run,
        "step": step,
        "samples": job.training.first_sample + step * job.replicas * job.training.batch,
        "batch": job.training.batch,
        "epoch_samples": job.training.samples,
        "seed": job.config.seed,
        "method": job.method.name,
        "optimizer": job.optimizer.name,
        "written": time.time(),
        NAMES: list(job.names),
        **describe_position(stream),
    }


def write_checkpoint(
    job: "Job",
    shards: Sequence[dict[str, Any]],
    states: Sequence[StateFile],
    step: int | None = None,
    stream: Position | None = None,
) -> None:
    """Complete the checkpoint that shards and workers have written, and write the whole model beside it.

    step, stream: as in `describe_checkpoint`; by default all steps were made.
    """
    folder = job.out / CHECKPOINT
    files = [msgspec.convert(shard["file"], ShardFile) for shard in shards]
    about = describe_checkpoint(job, job.training.steps if step is None else step, stream)
    manifest = Manifest(job.slices, job.regions, files, list(states), about)
    write_manifest(folder, manifest)
    checkpoint = Checkpoint(folder, manifest)
    export_weights(job, checkpoint, job.out / WEIGHTS)
    if job.config.ema is not None:
        export_weights(job, checkpoint, job.out / EMA_WEIGHTS, state=EMA)


def export_weights(
    job: "Job", checkpoint: Checkpoint, path: Path, *, metadata: Mapping[str, str] | None = None, state: str = ""
) -> None:
    """Write the whole model of a checkpoint as a plain state_dict. UsageError where that cannot be.

    state: what the optimizer remembers of the trained parameters, to be written in their place.
    """
    trained = set(checkpoint.trained_names)
    with TensorReader(job.training.initial) as initial:
        layouts = {name: initial.layouts[known] for name, known in job.names.items()}
        with new_file(path, layouts, metadata=metadata) as writer:
            for name, known in job.names.items():
                if known in checkpoint:
                    dtype = layouts[name][0]
                    copy_whole(checkpoint, known, writer, name, dtype, state=state if known in trained else "")
                else:  # what no operator uses is as it was at the beginning
                    writer.write(name, initial.tensor(known))


def export_best(job: "Job") -> dict[str, Any] | None:
    """Write the best weights as one file in place of the checkpoint; return what is known of them, None if none."""
    folder = job.out / BEST
    if not (folder / MANIFEST).exists():
        return None
    checkpoint = open_checkpoint(folder)
    about = {name: checkpoint.manifest.about[name] for name in ("score", "value", "samples")}
    export_weights(job, checkpoint, job.out / BEST_WEIGHTS, metadata={BEST_KEY: json.dumps(about)})
    shutil.rmtree(folder)
    return about


def copy_whole(
    checkpoint: Checkpoint, known: str, writer: TensorWriter, name: str, dtype: torch.dtype, *, state: str = ""
) -> None:
    """Write a tensor of a checkpoint, or state that the optimizer has of it, in a dtype, some rows at a time."""
    axes = checkpoint.axes(known)
    if not axes or 0 in axes:
        values = checkpoint.read_box(known, whole(axes), state=state).reshape(checkpoint.shape(known))
        writer.write(name, values.to(dtype))
        return
    row = math.prod(axes[1:])
    rows = max(1, PART_BYTES // (8 * row))
    for start in range(0, axes[0], rows):
        box = ((start, min(start + rows, axes[0])), *whole(axes[1:]))
        writer.write(name, checkpoint.read_box(known, box, state=state).to(dtype), start=start * row)
