"""A run whose checkpoints go by time, killed and gone on with, ends as one that nothing disturbed, bit for bit."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from killed import train_and_kill
from safetensors.torch import load_file

from cutset.ps.optimizers.standard import Adam
from cutset.ps.checkpoint.manifest import MANIFEST
from cutset.ps.methods.sync import Sync
from cutset.tools.training.checkpoint_sets import complete
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.job.prepare import Options, prepare
from cutset.tools.job.resume import checkpoint_of
from cutset.tools.job.export_weights import WEIGHTS
from cutset.tools.train import run

MIXED = f"{Path(__file__).parent / 'tools' / 'user_models' / 'good.py'}:mixed"
EPOCHS, STEPS = 100, 600  # of 96 samples, by two replicas with batches of 8
OFTEN = "0.001s"  # less than it takes to make one, so that the next is due as soon as one is complete


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


def trained(out: Path, **more: Any) -> Path:
    options = Options(
        TaskSpec(MIXED), Sync(), Adam(0.005), out, replicas=2, shards=2, epochs=EPOCHS, baseline=False, **more
    )
    run(prepare(options), lambda *said: None)
    return out


def test_it_ends_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    options = ["--method", "sync", "--rule", "adam", "--lr", 0.005, "--replicas", 2, "--shards", 2]
    options += ["--epochs", EPOCHS, "--checkpoint-every", OFTEN, "--keep", 2, "--no-baseline", "--out", out]
    written = f"checkpoints/*/{MANIFEST}"
    assert train_and_kill(MIXED, *options, at_step=STEPS // 4, once=lambda: any(out.glob(written))) < STEPS
    assert not (out / WEIGHTS).exists()
    middle = checkpoint_of(out).manifest.about["step"]
    assert 0 < middle < STEPS
    trained(out, resume=out, checkpoint_every=OFTEN, keep=2)
    folders = sorted((out / "checkpoints").iterdir())
    assert folders == complete(out), "none is left that is not complete"
    assert middle < int(folders[-1].name) < STEPS
    found, whole = load_file(out / WEIGHTS), load_file(trained(tmp_path / "whole") / WEIGHTS)
    assert found.keys() == whole.keys()
    assert whole["norm.num_batches_tracked"] == STEPS
    assert all(torch.equal(tensor, whole[name]) for name, tensor in found.items())
    # And what the rule remembers, at the end of both.
    ends = [checkpoint_of(tmp_path / name / "checkpoint") for name in ("killed", "whole")]
    assert ends[0].memories()
    for name in ends[0].memories():
        for parameter in ends[0].trained:
            box = tuple((0, size) for size in ends[0].axes(parameter))
            assert torch.equal(*(end.part(parameter, box, memory=name) for end in ends))
