"""The names of the files and folders in a run folder, and how those of one run take the place of another's."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UsageError
from ..whole_file import PREFIX, SUFFIX

CONFIG = "config.json"  # the options that the run was started with
PLACEMENT = "placement.json"  # how the model was cut
INITIAL = "initial.safetensors"  # the weights that training began with
LOGS = "logs"  # folder; what each process printed
CHECKPOINT = "checkpoint"  # folder; the checkpoint of the end
WEIGHTS = "model.safetensors"  # the trained model as a plain state_dict
EMA_WEIGHTS = "model-ema.safetensors"  # the moving average of the weights, as a plain state_dict
BEST = "best"  # folder; the checkpoint of the best weights so far, while the run lasts
BEST_WEIGHTS = "best.safetensors"  # these weights as a plain state_dict
TRACE = "trace.json"  # some recorded steps, for ui.perfetto.dev
METRICS = "metrics.jsonl"  # what was heard of the run, line by line (tools/tracking)
EVENTS = "tensorboard"  # folder; the same as TensorBoard has it
RESULT = "result.json"
REPORT = "report.html"

RUNS = Path("runs")  # where run folders are that the user does not name
LAST = RUNS / "last"  # a symbolic link to the newest of them
MODE = 0o700  # of a run folder: data and weights are nobody else's business
SAVED_BUFFER = "buffer/"  # before the number of a buffer in a worker's file of a recovery point

# What else a run writes there, as patterns.
_WHILE_IT_TRAINS = (
    *("resumed.safetensors", "resumed-*.safetensors", "buffers-*.safetensors", "*.safetensors.tmp"),
    *("training.lock", "replicas.json", "replicas.request.json", "replicas*.json.new"),
)
_PARTS = ("manifest.json", "shard-*.safetensors", "state-*.safetensors", "worker-*.safetensors", "*.tmp")
_FOLDERS = {  # a folder in a folder comes after it
    LOGS: ("*.log",),
    CHECKPOINT: _PARTS,
    BEST: _PARTS,
    EVENTS: (),
    f"{EVENTS}/*": ("events.out.tfevents.*",),
    "checkpoints": (),
    "checkpoints/[0-9]*": _PARTS,
    "journal": (*_PARTS, "unfinished.json"),
    "journal/[0-9]*": _PARTS,
    "batch": ("operations.jsonl", INITIAL),
    "batch/shard-*.*": _PARTS,
}
_FILES = (CONFIG, PLACEMENT, INITIAL, WEIGHTS, EMA_WEIGHTS, BEST_WEIGHTS, TRACE, METRICS, RESULT, REPORT)
_RESULTS = (
    *(RESULT, WEIGHTS, EMA_WEIGHTS, BEST_WEIGHTS),
    *(f"{folder}/manifest.json" for folder in (CHECKPOINT, BEST, "checkpoints/[0-9]*")),
)


def buffer_path(folder: Path, replica: int, machine: int) -> Path:
    """Return where a worker saves its buffers, whatever its incarnation."""
    return folder / f"buffers-{replica}.{machine}.safetensors"


def local_state_name(replica: int, machine: int) -> str:
    """Return the name of a worker's file in the folder of a recovery point."""
    return f"worker-{replica}.{machine}.safetensors"


def find_foreign(folder: Path) -> Path | None:
    """Return what is in a folder that has no run and bears the name of what a run writes; None for empty folders."""
    for name in (*_FILES, *(inner for inner in _FOLDERS if "/" not in inner)):
        path = folder / name
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            continue
        if os.path.lexists(path):
            return path
    return None


def find_result(folder: Path) -> Path | None:
    """Return a file that a run has left and that would be missed: its result, its model or a complete checkpoint."""
    return next((path for pattern in _RESULTS for path in folder.glob(pattern)), None)


def remove_run(folder: Path) -> None:
    """Remove all files that a run has written into its folder, and none of the user's. Raises OSError."""
    for name in (*_FILES, *_WHILE_IT_TRAINS):
        _remove_files(folder, name)
    for inner, names in reversed(_FOLDERS.items()):
        for path in [path for path in folder.glob(inner) if path.is_dir() and not path.is_symlink()]:
            for name in names:
                _remove_files(path, name)
            with contextlib.suppress(OSError):  # the user has put something there
                os.rmdir(path)


def _remove_files(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        if path.is_file() or path.is_symlink():
            path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a run folder, for its user alone, and the folders above it, unless they are there. Raises OSError."""
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    for path in reversed(missing[1:]):
        path.mkdir(exist_ok=True)
    folder.mkdir(MODE, exist_ok=True)


@contextmanager
def stage_files(folder: Path, *, fresh: bool) -> Iterator[Path]:
    """Yield an empty folder, whose files are moved to the run folder in the end, unless an exception is raised.

    fresh: what an earlier run has left is then removed, if it was not replaced. Raises UsageError (E222) where the run
    folder cannot be written.
    """
    try:
        make_folder(folder)
        staged = Path(tempfile.mkdtemp(prefix=PREFIX, suffix=SUFFIX, dir=folder))
    except OSError as error:
        raise UsageError("E222", f"cannot make the run folder {folder}: {error}", fix="--out FOLDER") from error
    try:
        yield staged
        _move_files(staged, folder, fresh=fresh)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _move_files(staged: Path, folder: Path, *, fresh: bool) -> None:
    """Replace the files of a run folder; the placement of an earlier run does not stay, if this one has none."""
    try:
        for killed in {*folder.glob(f"{PREFIX}*{SUFFIX}")} - {staged}:
            shutil.rmtree(killed) if killed.is_dir() else killed.unlink()
        if fresh:
            remove_run(folder)
        (folder / PLACEMENT).unlink(missing_ok=True)
        for path in sorted(staged.iterdir(), key=lambda path: path.name != CONFIG):  # by which a run folder is known
            os.replace(path, folder / path.name)
    except OSError as error:
        raise UsageError("E222", f"cannot write {folder}: {error}", fix="--out FOLDER") from error
