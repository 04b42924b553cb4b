"""A killed run whose checkpoints go by time resumes and ends as an undisturbed one, bit for bit."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from killed import train_and_kill
from places import USER_MODELS
from safetensors.torch import load_file

from cutset.ps.checkpoint.manifest import MANIFEST
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import Adam
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.job.resume import find_checkpoint
from cutset.tools.run_folder import WEIGHTS
from cutset.tools.train import run
from cutset.tools.training.checkpoint_sets import complete_checkpoints

MIXED = f"{USER_MODELS / 'good.py'}:mixed"
EPOCHS, STEPS = 100, 600  # of 96 samples, by two replicas with batches of 8
OFTEN = "0.001s"  # less than it takes to make one, so that the next is due as soon as one is complete


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


def trained(out: Path, **more: Any) -> Path:
    options = RunConfig(
        MIXED,
        method=Sync(),
        optimizer=Adam(0.005),
        out=out,
        replicas=2,
        shards=2,
        epochs=EPOCHS,
        baseline=False,
        **more,
    )
    run(prepare(options))
    return out


@pytest.mark.slow
def test_a_killed_run_with_timed_checkpoints_resumes_as_if_undisturbed(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    options = ["--method", "sync", "--optimizer", "adam", "--lr", 0.005, "--replicas", 2, "--shards", 2]
    options += ["--epochs", EPOCHS, "--checkpoint-every", OFTEN, "--keep-checkpoints", 2, "--no-baseline", "--out", out]
    written = f"checkpoints/*/{MANIFEST}"
    assert train_and_kill(MIXED, *options, at_step=STEPS // 4, once=lambda: any(out.glob(written))) < STEPS
    assert not (out / WEIGHTS).exists()
    middle = find_checkpoint(out).manifest.about["step"]
    assert 0 < middle < STEPS
    trained(out, resume=out, checkpoint_every=OFTEN, keep_checkpoints=2)
    folders = sorted((out / "checkpoints").iterdir())
    assert folders == complete_checkpoints(out), "none is left that is not complete"
    assert middle < int(folders[-1].name) < STEPS
    found, whole = load_file(out / WEIGHTS), load_file(trained(tmp_path / "whole") / WEIGHTS)
    assert found.keys() == whole.keys()
    assert whole["norm.num_batches_tracked"] == STEPS
    assert all(torch.equal(tensor, whole[name]) for name, tensor in found.items())
    # And what the optimizer remembers, at the end of both.
    ends = [find_checkpoint(tmp_path / name / "checkpoint") for name in ("killed", "whole")]
    assert ends[0].state_names()
    for name in ends[0].state_names():
        for parameter in ends[0].trained_names:
            box = tuple((0, size) for size in ends[0].axes(parameter))
            assert torch.equal(*(end.read_box(parameter, box, state=name) for end in ends))
