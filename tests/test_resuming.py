"""A run that was killed and goes on from its last checkpoint ends where it would have ended, on whatever it goes on."""

import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killed import train_and_kill
from safetensors.torch import load_file

from cutset.ps.checkpoint import load
from cutset.ps.downpour import Downpour
from cutset.ps.gradient_rules import Adam
from cutset.ps.methods import method
from cutset.ps.sync import Sync
from cutset.tools.load import TaskSpec
from cutset.tools.planning import Wanted
from cutset.tools.prepare import Options, prepare
from cutset.tools.resuming import checkpoint_of
from cutset.tools.saving import WEIGHTS
from cutset.tools.train import run

DIGITS = "cutset.models:digits"
MIXED = f"{Path(__file__).parent / 'tools' / 'user_models' / 'good.py'}:mixed"
STEPS, EVERY = 143, 5  # four epochs of 1,437 digits, by two replicas with batches of 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing has disturbed, with all its checkpoints."""
    out = tmp_path_factory.mktemp("whole")
    trained(digits(out, keep=100))
    return out


def digits(out: Path, **more: Any) -> Options:
    given: dict[str, Any] = {"shards": 2, "replicas": 2, "epochs": 4, "checkpoint_every": EVERY} | more
    return Options(TaskSpec(DIGITS), Sync(), Adam(0.005), out, baseline=False, seed=3, **given)


def trained(options: Options) -> dict[str, Any]:
    return run(prepare(options), lambda *said: None)


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


@pytest.mark.parametrize(("seed", "shards"), [(0, 2), (1, 1), (2, 3)])
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path: Path, whole: Path, seed: int, shards: int) -> None:
    out, at_step = tmp_path / "run", random.Random(seed).randrange(3 * EVERY, 2 * STEPS // 3)
    options = ["--method", "sync", "--rule", "adam", "--lr", 0.005, "--replicas", 2, "--shards", 2, "--epochs", 4]
    options += ["--seed", 3, "--checkpoint-every", EVERY, "--no-baseline", "--out", out]
    assert train_and_kill(DIGITS, *options, at_step=at_step) < STEPS
    assert not (out / WEIGHTS).exists()
    found = checkpoint_of(out).manifest.about
    assert EVERY <= found["step"] < STEPS
    result = trained(digits(out, shards=shards, resume=out))
    assert alike(out, whole)
    (row,) = result["rows"]
    assert row["samples"] == 40 * (STEPS - found["step"])
    assert row["samples_per_s"] == pytest.approx(row["samples"] / row["seconds"])
    said = f"It goes on from {out} after {found['step']} of {STEPS} steps of 40 samples"
    assert [note for note in result["notes"] if note.startswith(said)]
    assert [load(folder).manifest.about["step"] for folder in sorted((out / "checkpoints").iterdir())] == [
        130,
        135,
        140,
    ]
    # And what the rule remembers.
    (a, b) = checkpoint_of(out), checkpoint_of(whole)
    for name in a.memories():
        for parameter in a.trained:
            box = tuple((0, size) for size in a.axes(parameter))
            assert torch.equal(a.part(parameter, box, memory=name), b.part(parameter, box, memory=name))


@pytest.mark.parametrize("machines", [2, 3])
def test_it_may_go_on_on_more_machines(tmp_path: Path, whole: Path, machines: int) -> None:
    middle = whole / "checkpoints" / "000007"
    trained(digits(tmp_path, wanted=Wanted(machines), shards=machines, resume=middle, checkpoint_every=0))
    assert alike(tmp_path, whole, rtol=0, atol=1e-5)
    assert not (tmp_path / "checkpoints").exists()


def test_it_may_go_on_with_fewer_replicas_on_the_samples_that_are_left(tmp_path: Path, whole: Path) -> None:
    middle = whole / "checkpoints" / "000007"
    result = trained(digits(tmp_path, replicas=1, resume=middle, checkpoint_every=0))
    assert result["rows"][0]["samples"] == 20 * (287 - 70)
    assert result["test_accuracy"] > 0.8


@pytest.mark.parametrize("machines", [1, 2])
def test_buffers_and_what_is_frozen_are_as_they_were(
    tmp_path: Path, machines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    options = replace(
        digits(tmp_path / "whole", keep=100), spec=TaskSpec(MIXED, batch=8), wanted=Wanted(2), method=Sync(), shards=1
    )
    trained(options)
    middle = options.out / "checkpoints" / "000001"
    again = replace(options, out=tmp_path / "again", resume=middle, wanted=Wanted(machines))
    trained(again)
    assert weights(again.out)["norm.num_batches_tracked"] == 24
    assert alike(again.out, options.out, rtol=0, atol=1e-12) if machines == 1 else alike(again.out, options.out)


@pytest.mark.parametrize("text", ["downpour", "ssp", "averaging:every=5", "diloco:every=5", "easgd:every=5"])
def test_every_method_goes_on(tmp_path: Path, text: str) -> None:
    """Batches before the checkpoint are not computed again, and what follows goes on from its values."""
    options = replace(digits(tmp_path / "run", shards=1, keep=100), method=method(text, {}), rule=Adam(0.002))
    first = trained(options)
    middle = folders(options.out)[6]
    about = load(middle).manifest.about
    assert (about["step"], about["samples"]) == (35, 1400)
    result = trained(replace(options, out=tmp_path / "again", resume=middle))
    assert result["rows"][0]["samples"] == 40 * (STEPS - 35)
    if options.method.leased:
        assert sum(result["shares"]["taken"].values()) == 2 * (STEPS - 35)
        assert sum(result["shares"]["repeated"].values()) == 0
    assert result["test_accuracy"] > first["test_accuracy"] - 0.1
    assert int(folders(tmp_path / "again")[0].name) == 8


def test_keep_counts_what_earlier_runs_in_the_folder_have_left(tmp_path: Path) -> None:
    options = replace(digits(tmp_path, keep=2, shards=1, replicas=1), method=Downpour(), epochs=1)
    trained(options)
    assert [folder.name for folder in folders(tmp_path)] == ["000013", "000014"]
    (tmp_path / "checkpoints" / "000099").mkdir()  # of a run that was killed
    trained(replace(options, checkpoint_every=70))  # anew, in the same folder
    assert [folder.name for folder in folders(tmp_path)] == ["000001", "000014"]
    assert checkpoint_of(tmp_path).manifest.about["step"] == 71, "the last that was written, of the run that ended last"


def test_a_folder_of_checkpoints_that_cannot_be_made_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    options = replace(digits(tmp_path, shards=2, checkpoint_every=10), spec=TaskSpec(MIXED), wanted=Wanted(2), epochs=9)
    (tmp_path / "checkpoints").touch()
    (tmp_path / "journal").mkdir()
    notes: list[str] = []
    result = run(prepare(options), lambda *said: None, note=notes.append)
    assert result["test_accuracy"] > 0.5
    assert (tmp_path / WEIGHTS).exists()
    said = [note for note in notes if "cannot be written" in note]
    assert len(said) == len({note.split()[2] for note in said}), "each process says it once"
    assert {note.split()[2] for note in said} == {"shard-0", "shard-1", "worker-0.0", "worker-0.1"}
    assert all("the run goes on, and the last good ones stay" in note for note in said)
    shutil.rmtree(tmp_path / "checkpoint")
