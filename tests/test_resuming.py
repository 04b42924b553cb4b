"""A killed run that resumes from its last checkpoint ends as an undisturbed one, on whatever machines it resumes."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from listening import Listening
from resumed import (
    MIXED,
    check_buffers,
    check_killed,
    check_method,
    check_on_more_machines,
    digits,
    folders,
    trained,
    whole_run,
)
from safetensors.torch import load_file

from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.sandblaster import Sandblaster
from cutset.tools.job.prepare import prepare
from cutset.tools.job.resume import find_checkpoint
from cutset.tools.run_folder import WEIGHTS
from cutset.tools.train import run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
def test_a_killed_run_resumes_as_if_undisturbed(tmp_path: Path, whole: Path) -> None:
    """On three shards instead of two. tests/slow/test_resuming.py has one and two, other methods and machines."""
    check_killed(tmp_path, whole, seed=2, shards=3)


@pytest.mark.slow
def test_it_may_resume_on_more_machines(tmp_path: Path, whole: Path) -> None:
    check_on_more_machines(tmp_path, whole, 2)


@pytest.mark.slow
def test_it_may_resume_with_fewer_replicas_on_the_remaining_samples(tmp_path: Path, whole: Path) -> None:
    middle = whole / "checkpoints" / "000007"
    result = trained(digits(tmp_path, replicas=1, resume=middle, checkpoint_every=0))
    assert result["rows"][0]["samples"] == 20 * (287 - 70)
    assert result["test_accuracy"] > 0.8


@pytest.mark.slow
def test_buffers_and_frozen_parameters_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    check_buffers(tmp_path, 2)


@pytest.mark.slow
def test_an_asynchronous_run_resumes(tmp_path: Path) -> None:
    check_method(tmp_path, "downpour")


@pytest.mark.slow
def test_keep_checkpoints_counts_those_of_earlier_runs_in_the_folder(tmp_path: Path) -> None:
    options = replace(digits(tmp_path, keep_checkpoints=2, shards=1, replicas=1), method=Downpour(), epochs=1)
    trained(options)
    assert [folder.name for folder in folders(tmp_path)] == ["000013", "000014"]
    (tmp_path / "checkpoints" / "000099").mkdir()  # of a run that was killed
    trained(replace(options, checkpoint_every=70))  # anew, in the same folder
    assert [folder.name for folder in folders(tmp_path)] == ["000001", "000014"]
    assert find_checkpoint(tmp_path).manifest.about["step"] == 71, (
        "the last that was written, of the run that ended last"
    )


@pytest.mark.slow
def test_a_checkpoint_folder_that_cannot_be_made_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    options = replace(digits(tmp_path, shards=2, checkpoint_every=10), task=MIXED, machines=2, epochs=9)
    (tmp_path / "checkpoints").touch()
    (tmp_path / "journal").mkdir()
    notes: list[str] = []
    result = run(prepare(options), Listening(on_notice=notes.append))
    assert result["test_accuracy"] > 0.5
    assert (tmp_path / WEIGHTS).exists()
    said = [note for note in notes if "cannot be written" in note]
    assert len(said) == len({note.split()[2] for note in said}), "each process says it once"
    assert {note.split()[2] for note in said} == {"shard-0", "shard-1", "worker-0.0", "worker-0.1"}
    assert all("training continues, and the last complete files stay" in note for note in said)
    shutil.rmtree(tmp_path / "checkpoint")


@pytest.mark.slow
def test_any_run_may_start_from_the_last_checkpoint_of_another(tmp_path: Path, whole: Path) -> None:
    given = replace(
        digits(tmp_path, init=whole, checkpoint_every=0), method=Sandblaster(iterations=1), optimizer=None, epochs=1
    )
    prepare(given)
    begun, ended = load_file(tmp_path / "initial.safetensors"), load_file(whole / WEIGHTS)
    assert ended.keys() <= begun.keys()
    assert all(torch.equal(begun[name], ended[name]) for name in ended)
