"""Runs of every method go on from a checkpoint, and on other shards and machines than in tests/test_resuming.py."""

import sys
from pathlib import Path

import pytest
from marking import with_slow
from resumed import check_buffers, check_killed, check_method, check_on_more_machines, whole_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("seed", "shards"), with_slow([(0, 2)], [(1, 1)]))
def test_a_killed_run_resumes_as_if_undisturbed(tmp_path: Path, whole: Path, seed: int, shards: int) -> None:
    check_killed(tmp_path, whole, seed=seed, shards=shards)


def test_it_may_resume_on_three_machines(tmp_path: Path, whole: Path) -> None:
    check_on_more_machines(tmp_path, whole, 3)


def test_buffers_and_frozen_parameters_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    check_buffers(tmp_path, 1)


@pytest.mark.parametrize("text", ["ssp", "averaging:every=5", "diloco:every=5", "easgd:every=5"])
def test_every_method_resumes(tmp_path: Path, text: str) -> None:
    check_method(tmp_path, text)
