"""What every engine has to do: train in lock step with the bits of a run on this machine."""

from pathlib import Path

from command_line import Cutset
from places import USER_MODELS

TASK = f"{USER_MODELS / 'good.py'}:task"
LOCK_STEP = ("train", TASK, "--no-baseline", "--method", "sync", "--replicas", "3", "--shards", "2")


def train_here(cutset: Cutset, folder: Path) -> bytes:
    """Train on this machine; return the weights."""
    assert cutset(*LOCK_STEP, "--out", folder / "here").code == 0
    return read_weights(folder / "here")


def check_bits(cutset: Cutset, folder: Path, engine: str) -> None:
    """Train here and on the machines of an engine."""
    expected = train_here(cutset, folder)
    outcome = cutset(*LOCK_STEP, "--on", engine, "--out", folder / "there")
    assert outcome.code == 0, outcome.err
    assert read_weights(folder / "there") == expected


def read_weights(run: Path) -> bytes:
    """Return the weights of a run, as its file has them."""
    return (run / "model.safetensors").read_bytes()
