"""Runs in lock step that are killed at random times, with all of their processes, and resumed: equal bits."""

from pathlib import Path

import pytest
from resumed import check_killed, whole_run

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_run_resumes_as_if_undisturbed(tmp_path: Path, whole: Path, seed: int) -> None:
    check_killed(tmp_path, whole, seed=100 + seed, shards=1 + seed % 3)
