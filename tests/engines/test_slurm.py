"""Runs on a real Slurm of three nodes: in an allocation of its own, and in one that is there."""

import subprocess
from pathlib import Path

import pytest
from command_line import USAGE, Cutset
from command_line import cutset as cutset
from engine_runs import LOCK_STEP, TASK, check_bits
from slurm_cluster import needs_slurm, slurm_cluster

pytestmark = [needs_slurm, pytest.mark.timeout(300)]


def test_a_run_in_an_allocation_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutset: Cutset) -> None:
    (tmp_path / "slurm").mkdir()
    with slurm_cluster(tmp_path / "slurm", 3, monkeypatch):
        check_bits(cutset, tmp_path, "slurm:partition=all,time=10")
        left = subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout
        assert not left.strip() or " CG " in left
        refused = cutset(*LOCK_STEP, "--on", "slurm:partition=none", "--out", tmp_path / "refused")
        assert (refused.code, "salloc gave no allocation" in refused.err) == (USAGE, True), refused.err


def test_an_allocation_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutset: Cutset) -> None:
    (tmp_path / "slurm").mkdir()
    with slurm_cluster(tmp_path / "slurm", 3, monkeypatch):
        granted = subprocess.run(["salloc", "--no-shell", "--nodes=2"], capture_output=True, text=True, check=True)
        monkeypatch.setenv("SLURM_JOB_ID", granted.stderr.split("job allocation")[1].split()[0])
        ready = cutset("doctor", "--on", "slurm")
        assert ready.code == 0, ready.out + ready.err
        assert "ready: 2 machines" in ready.out
        small = cutset("train", TASK, "--machines", "3", "--on", "slurm", "--out", tmp_path / "small")
        assert small.code == USAGE
        assert "has 2 of the 3 machines that the model is cut over" in small.err
