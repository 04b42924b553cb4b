"""What a process may use of its machine: fewer cores than there are, where it is bound or its container has a quota."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutset.runtime.hosts import versions

COUNT = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
from cutset.runtime.hosts.host import LocalHost
print(LocalHost().cores)
"""


def test_a_process_that_is_bound_to_a_core_has_one() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 4), ("150000 100000", 2), ("900000 100000", 4), ("", 4)])
def test_the_quota_of_a_container_is_rounded_up(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(versions, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert versions.read_cores() == cores
