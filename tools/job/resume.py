"""`Resumed`: what a run that goes on from a checkpoint begins with - weights, the rule's memory, and how far it was.

Both are written as whole tensors, so that the run may have other shards, replicas and machines than the one before.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BadInput, CheckpointError, UsageError
from ...ps.checkpoint.read_checkpoint import Checkpoint, load, read_manifest
from ...ps.checkpoint.journal import checkpoint_folders
from ...ps.checkpoint.manifest import MANIFEST
from .export_weights import CHECKPOINT, age, copy_whole, new_file

if TYPE_CHECKING:
    from .prepare import Options

WEIGHTS, MEMORY = "resumed.safetensors", "resumed-{}.safetensors"
NAMED = 5  # parameters, at most, that an error lists


@dataclass(frozen=True)
class Resumed:
    """samples: that all replicas together have trained on. weights: a file of whole tensors by name, and memories one
    for each thing that the rule remembers of those that are trained."""

    samples: int
    weights: Path
    memories: dict[str, str]
    trained: frozenset[str]


def checkpoint_of(path: Path) -> Checkpoint:
    """The checkpoint in a folder, or that of a run folder which was written last.

    CheckpointError where there is none, or it is damaged: that names the one before, which is not taken unasked.
    """
    if (path / MANIFEST).exists():
        return load(path)
    begun = checkpoint_folders(path)
    found = [folder for folder in (*begun, path / CHECKPOINT) if (folder / MANIFEST).exists()]
    if not found:
        there = f"; {len(begun)} were begun there, of which none was written to the end" if begun else ""
        raise CheckpointError(
            "E801",
            f"{path} has no complete checkpoint{there}",
            fix="name a run folder that has one, or a folder that holds manifest.json",
        )
    *older, last = sorted(found, key=lambda folder: age(read_manifest(folder).about))
    try:
        return load(last)
    except CheckpointError as error:
        if not older:
            raise
        raise CheckpointError(error.code, error.facts, fix=f"--resume {older[-1]}, the one before") from error


def resumed(options: "Options") -> Resumed | None:
    """What a run begins with that shall go on, written into its folder; None for one that begins anew."""
    if options.resume is None:
        return None
    checkpoint = checkpoint_of(options.resume)
    _check(checkpoint.manifest.about, options)
    memories = {name: _written(checkpoint, options.out / MEMORY.format(name), name) for name in checkpoint.memories()}
    weights = _written(checkpoint, options.out / WEIGHTS)
    paths = {name: str(path.resolve()) for name, path in memories.items()}
    return Resumed(int(checkpoint.manifest.about["samples"]), weights, paths, frozenset(checkpoint.trained))


def initial(options: "Options") -> Path | None:
    """The file with the weights that are to be begun with, if any: of a folder's checkpoint it is written first."""
    if options.init is None or not options.init.is_dir():
        return options.init
    return _written(checkpoint_of(options.init), options.out / WEIGHTS)


def remove_resumed(out: Path) -> None:
    """What a run has begun with need not stay when it has ended well."""
    for path in (out / WEIGHTS, *out.glob(MEMORY.format("*"))):
        path.unlink(missing_ok=True)


def demand_trained(found: Resumed | None, options: "Options", task: str, names: Set[str]) -> None:
    """BadInput where the checkpoint is not of all the parameters that a run is to train, and of no others."""
    if found is None or found.trained == names:
        return
    kinds = {"has no": names - found.trained, "trains also": found.trained - names}
    said = "; ".join(f"{what} {', '.join(sorted(some)[:NAMED])}" for what, some in kinds.items() if some)
    raise of_another_model(options, task, said)


def of_another_model(options: "Options", task: str, how: str) -> BadInput:
    """The error of a checkpoint that differs from the model of a task. how: it "has no first.weight", say."""
    facts = f"the checkpoint in {options.resume} is not of the model of task {task}: it {how}"
    return BadInput("E291", facts, fix="name the task and the options of it that the checkpoint was made with")


def _written(checkpoint: Checkpoint, path: Path, memory: str = "") -> Path:
    """Write the whole tensors of a checkpoint, or a memory of those that are trained."""
    names = checkpoint.trained if memory else checkpoint.names
    layouts = {name: (checkpoint.dtype(name), list(checkpoint.shape(name))) for name in names}
    with new_file(path, layouts) as writer:
        for name in names:
            copy_whole(checkpoint, name, writer, name, memory=memory)
    return path


def _check(about: Mapping[str, Any], options: "Options") -> None:
    """UsageError where what the checkpoint was made by does not fit what is asked for."""
    missing = [name for name in ("samples", "rule", "seed", "method") if name not in about]
    if missing:
        facts = f"the manifest of {options.resume} does not say its {', '.join(missing)}"
        raise CheckpointError("E803", facts, fix="--init with its weights, to begin anew")
    if about["rule"] != options.rule.name:
        raise UsageError(
            "E282",
            f"the checkpoint was made with rule {about['rule']}, whose memory is not that of {options.rule.name}",
            fix=f"--rule {about['rule']}, or --init with the run's model.safetensors to begin anew",
        )
    if about["method"] != options.method.name:
        raise UsageError(
            "E292",
            f"the checkpoint was made by method {about['method']}, whose shards remember other things than those of "
            f"{options.method.name}",
            fix=f"--method {about['method']}, or --init with the run's model.safetensors to begin anew",
        )
    if about["seed"] != options.seed:
        raise UsageError(
            "E283",
            f"the checkpoint was made with seed {about['seed']}; with {options.seed} samples come in another order",
            fix=f"--seed {about['seed']}",
        )
