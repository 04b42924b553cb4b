"""Some seeds of the simulation; `make simulate` has more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from marking import with_slow

PROGRAM = Path(__file__).with_name("simulate.py")


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, whose clock is the virtual one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(("first", "seeds"), with_slow([(0, 20)], [(20, 250)]))
def test_runs_with_faults_end_as_they_should(first: int, seeds: int) -> None:
    ended = simulate("--first", str(first), "--seeds", str(seeds), "--jobs", "1")
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-5000:]
    assert ended.stdout == f"{seeds} seeds, 0 wrong\n"


@pytest.mark.slow
def test_a_seed_gives_the_same_run_again() -> None:
    """Both where replicas lease batches as they come, and where faults happen at random."""
    first, second = (simulate("--seed", "2", "--verbose") for _ in range(2))
    assert first.stdout == second.stdout
    assert "restarts" in first.stdout or "go back" in first.stdout


@pytest.mark.slow
def test_a_seed_that_goes_wrong_is_told(tmp_path: Path) -> None:
    """Shards that take every push for a new one: what the numbers are for."""
    ended = simulate("--first", "80", "--seeds", "20", "--jobs", "1", "--break-dedupe")
    assert ended.returncode == 1
    assert "batches applied" in ended.stdout
