"""Runs that resume from a checkpoint, compared with an undisturbed one."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killed import train_and_kill
from places import USER_MODELS
from safetensors.torch import load_file

from cutset.ps.checkpoint.read_checkpoint import open_checkpoint
from cutset.ps.methods.registry import parse_method
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import Adam
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.job.resume import find_checkpoint
from cutset.tools.run_folder import WEIGHTS
from cutset.tools.train import run

DIGITS = "cutset.models:digits"
MIXED = f"{USER_MODELS / 'good.py'}:mixed"
STEPS, EVERY = 143, 5  # four epochs of 1,437 digits, by two replicas with batches of 20


def digits(out: Path, **more: Any) -> RunConfig:
    given: dict[str, Any] = {"shards": 2, "replicas": 2, "epochs": 4, "checkpoint_every": EVERY} | more
    return RunConfig(DIGITS, method=Sync(), optimizer=Adam(0.005), out=out, baseline=False, seed=3, **given)


def trained(options: RunConfig) -> dict[str, Any]:
    return run(prepare(options))


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / WEIGHTS)


def folders(out: Path) -> list[Path]:
    """Of the checkpoints that it wrote while it trained and that are still there."""
    return sorted((out / "checkpoints").iterdir())


def alike(a: Path, b: Path, **how: Any) -> bool:
    """Whether two runs have left the same weights; how: to compare them."""
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    same = torch.allclose if how else torch.equal
    return all(same(tensor, second[name], **how) for name, tensor in first.items())


def whole_run(out: Path) -> Path:
    """The folder of a run that nothing has disturbed, with all its checkpoints."""
    trained(digits(out, keep_checkpoints=100))
    return out


def check_killed(tmp_path: Path, whole: Path, *, seed: int, shards: int) -> None:
    """A run that was killed, with two shards, ends with so many as if it had not been."""
    out, at_step = tmp_path / "run", random.Random(seed).randrange(3 * EVERY, 2 * STEPS // 3)
    options = ["--method", "sync", "--optimizer", "adam", "--lr", 0.005, "--replicas", 2, "--shards", 2, "--epochs", 4]
    options += ["--seed", 3, "--checkpoint-every", EVERY, "--no-baseline", "--out", out]
    assert train_and_kill(DIGITS, *options, at_step=at_step) < STEPS
    assert not (out / WEIGHTS).exists()
    found = find_checkpoint(out).manifest.about
    assert EVERY <= found["step"] < STEPS
    result = trained(digits(out, shards=shards, resume=out))
    assert alike(out, whole)
    (row,) = result["rows"]
    assert row["samples"] == 40 * (STEPS - found["step"])
    assert row["samples_per_s"] == pytest.approx(row["samples"] / row["seconds"])
    said = f"Resumed from {out} after {found['step']} of {STEPS} steps of 40 samples"
    assert [note for note in result["notes"] if note.startswith(said)]
    assert [open_checkpoint(folder).manifest.about["step"] for folder in sorted((out / "checkpoints").iterdir())] == [
        130,
        135,
        140,
    ]
    # And what the optimizer remembers.
    (a, b) = find_checkpoint(out), find_checkpoint(whole)
    for name in a.state_names():
        for parameter in a.trained_names:
            box = tuple((0, size) for size in a.axes(parameter))
            assert torch.equal(a.read_box(parameter, box, state=name), b.read_box(parameter, box, state=name))


def check_on_more_machines(tmp_path: Path, whole: Path, machines: int) -> None:
    """It may go on on more machines."""
    middle = whole / "checkpoints" / "000007"
    trained(digits(tmp_path, machines=machines, shards=machines, resume=middle, checkpoint_every=0))
    assert alike(tmp_path, whole, rtol=0, atol=1e-5)
    assert not (tmp_path / "checkpoints").exists()


def check_buffers(tmp_path: Path, machines: int) -> None:
    """Buffers and what is frozen are as they were, though it goes on on so many machines after two."""
    options = replace(
        digits(tmp_path / "whole", keep_checkpoints=100), task=MIXED, batch=8, machines=2, method=Sync(), shards=1
    )
    trained(options)
    middle = options.out / "checkpoints" / "000001"
    again = replace(options, out=tmp_path / "again", resume=middle, machines=machines)
    trained(again)
    assert weights(again.out)["norm.num_batches_tracked"] == 24
    assert alike(again.out, options.out, rtol=0, atol=1e-12) if machines == 1 else alike(again.out, options.out)


def check_method(tmp_path: Path, text: str) -> None:
    """Batches before the checkpoint are not computed again, and what follows goes on from its values."""
    options = replace(
        digits(tmp_path / "run", shards=1, keep_checkpoints=100), method=parse_method(text), optimizer=Adam(0.002)
    )
    first = trained(options)
    middle = folders(options.out)[6]
    about = open_checkpoint(middle).manifest.about
    assert (about["step"], about["samples"]) == (35, 1400)
    result = trained(replace(options, out=tmp_path / "again", resume=middle))
    assert result["rows"][0]["samples"] == 40 * (STEPS - 35)
    if options.method.leases_batches:
        assert sum(result["participation"]["completed"].values()) == 2 * (STEPS - 35)
        assert sum(result["participation"]["recomputed"].values()) == 0
    assert result["test_accuracy"] > first["test_accuracy"] - 0.1
    assert int(folders(tmp_path / "again")[0].name) == 8
