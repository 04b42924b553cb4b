"""Parameters that become shared are not held twice meanwhile."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch
from cutset.ps.server.shared_parameters import SharedBuffer
from cutset.ps.slices.slice_state import SliceState
from cutset.ps.slices.slicing import slice_parameters

def read_peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

pieces = slice_parameters([64 << 20], 1)
states = [SliceState(p, torch.full((p.size,), float(p.number)), {"sum": torch.full((p.size,), 0.5)}) for p in pieces]
before = read_peak()
buffer = SharedBuffer(states, 1)
taken = read_peak() - before
assert all((state.value == state.slice.number).all() and (state.state["sum"] == 0.5).all() for state in states)
print(taken)
"""


@pytest.mark.run
def test_the_slices_move_one_after_the_other() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True, timeout=120)
    assert int(said.stdout) < 128 << 20  # of 512 MiB that were there
