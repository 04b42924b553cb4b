"""What a run leaves behind: its checkpoint, and the whole model as a plain state_dict, written a part at a time."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from torch import Tensor

from ...partition.ir.box import whole
from ...errors import UsageError
from ...ps.checkpoint.read_checkpoint import Checkpoint
from ...ps.checkpoint.write_checkpoint import settle, write_manifest
from ...ps.checkpoint.manifest import Manifest, ShardFile, StateFile
from ...ps.checkpoint.streamed_safetensors import Layout, TensorReader, TensorWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .prepare import Prepared

CHECKPOINT = "checkpoint"  # folder of a run folder
WEIGHTS = "model.safetensors"
PART_BYTES = 16 << 20  # of a parameter that are put together at once


def save_state(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write tensors by name; UsageError where the file cannot be written."""
    with new_file(path, {name: (tensor.dtype, list(tensor.shape)) for name, tensor in tensors.items()}) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)
    return path


def unfinished(path: Path) -> Path:
    """What a file is called until all of it is written."""
    return path.with_name(path.name + ".tmp")


@contextmanager
def new_file(path: Path, layouts: Mapping[str, Layout]) -> "Iterator[TensorWriter]":
    """A file to write tensors to, which is there once all of them are; UsageError where it cannot be written."""
    temporary = unfinished(path)
    try:
        with TensorWriter(temporary, layouts) as writer:
            yield writer
            writer.finish()
        settle(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError("E222", f"cannot write {path}: {error}", fix="--out FOLDER with enough space") from error


def told(job: "Prepared", step: int) -> dict[str, Any]:
    """What the manifest of a checkpoint says of the run. step: that each replica has come to.

    written: seconds since 1970, by which the last checkpoint of a folder is known.
    """
    options = job.options
    return {
        "task": options.spec.model,
        "epochs": options.epochs,
        "step": step,
        "samples": step * job.course.replicas * job.course.batch,
        "seed": options.seed,
        "method": options.method.name,
        "rule": options.rule.name,
        "written": time.time(),
    }


def age(about: Mapping[str, Any]) -> tuple[float, int]:
    """By which checkpoints are ordered, as their manifests tell: when they were written, then how far the run was."""
    return float(about.get("written", 0.0)), int(about.get("samples", 0))


def write_checkpoint(job: "Prepared", served: Sequence[dict[str, Any]], states: Sequence[StateFile]) -> None:
    """Complete the checkpoint of the shards and workers, and write the whole model beside it."""
    folder = job.options.out / CHECKPOINT
    files = [msgspec.convert(shard["file"], ShardFile) for shard in served]
    about = told(job, job.course.steps)
    manifest = Manifest(job.slices, job.regions, files, list(states), about)
    write_manifest(folder, manifest)
    checkpoint = Checkpoint(folder, manifest)
    with TensorReader(job.course.initial) as initial:
        layouts = {name: initial.layouts[known] for name, known in job.names.items()}
        with new_file(job.options.out / WEIGHTS, layouts) as writer:
            for name, known in job.names.items():
                if known in checkpoint:
                    copy_whole(checkpoint, known, writer, name)
                else:  # what no operator uses is as it was at the beginning
                    writer.write(name, initial.tensor(known))


def copy_whole(checkpoint: Checkpoint, known: str, writer: TensorWriter, name: str, *, memory: str = "") -> None:
    """Write a tensor of a checkpoint, or a memory that the rule has of it, some rows at a time."""
    axes = checkpoint.axes(known)
    if not axes or 0 in axes:
        writer.write(name, checkpoint.part(known, whole(axes), memory=memory).reshape(checkpoint.shape(known)))
        return
    row = math.prod(axes[1:])
    rows = max(1, PART_BYTES // (8 * row))
    for start in range(0, axes[0], rows):
        box = ((start, min(start + rows, axes[0])), *whole(axes[1:]))
        writer.write(name, checkpoint.part(known, box, memory=memory), start=start * row)
