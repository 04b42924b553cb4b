"""Runs over many simulated machines, as `make simulate` has them; a thousand in `make slow`."""

import subprocess
import sys
from pathlib import Path

import pytest
from marking import with_slow

PROGRAM = Path(__file__).with_name("fleet.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machines", "lost", "method"), with_slow([(60, 5, "downpour")], [(40, 3, "sync"), (1000, 10, "downpour")])
)
def test_a_launcher_keeps_up_with_many_machines(machines: int, lost: int, method: str) -> None:
    command = [sys.executable, str(PROGRAM), "--machines", str(machines), "--lost", str(lost), "--method", method]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-5000:]
    assert f"{machines} machines, {lost} of them lost" in ended.stdout
    assert ended.stdout.endswith("the parameters are those that they should be\n")
