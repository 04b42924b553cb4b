"""Peaks of real processes are found by role, and drawing a model's weights needs little more than its largest one."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from cutset.errors import CutsetError
from cutset.tools.bench.training.memory_peaks import MemoryPeaks, measure, tabulate

DRAWING = """
import re, sys
from pathlib import Path
import torch
from torch import nn
from cutset.models.task import Data, Task
from cutset.tools.job import initial_weights

def deep(layers, width):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    for layer in model:
        nn.init.normal_(layer.weight, std=0.02)
    return model

def draw(layers, width, limit):
    initial_weights.MAX_WHOLE_BYTES = limit
    task = Task("deep", lambda: deep(layers, width), nn.functional.mse_loss, lambda n: Data((torch.zeros(n, 1),), ()))
    initial_weights.write_initial_weights(Path(sys.argv[1]), task, seed=0, constants={})
    # The peak of this program; ru_maxrss would begin with that of the process that started it.
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

draw(2, 10, 0)  # whatever torch loads for it
before = draw(2, 10, 0)
print(draw(16, 1600, int(sys.argv[2])) - before)
"""
WEIGHTS_KB = 16 * 1600 * 1600 * 4 // 1024


def grown_kb(path, limit):
    words = (sys.executable, "-c", DRAWING, str(path), str(limit))
    # glibc would keep freed tensors in its heap, now these and now those, once one of their size was freed.
    given_back = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    return int(subprocess.run(words, capture_output=True, text=True, check=True, timeout=120, env=given_back).stdout)


@pytest.mark.slow
def test_weights_are_drawn_in_a_fraction_of_the_memory_of_all(tmp_path):
    assert grown_kb(tmp_path / "apart", 0) < WEIGHTS_KB / 4
    assert grown_kb(tmp_path / "whole", 1 << 40) > WEIGHTS_KB * 0.9
    assert (tmp_path / "apart").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.slow
def test_the_peaks_of_a_run_are_those_of_its_processes():
    options = ("--method", "hogwild", "--epochs", "2")
    found = measure("cutset.models:digits", machines=2, optimizer="sgd", options=options, limit=10**9)
    assert set(found.peaks) == {"launcher", "worker-0.0", "worker-0.1", "shard-0", "shard-1"}
    assert all(peak > 50e6 for peak in found.peaks.values())
    assert found.weights_bytes == 4 * found.parameters > 0
    assert found.to_dict()["peaks"] == found.peaks
    assert (found.bound_bytes, found.held) == (10**9, True)
    assert found.losses
    assert found.losses[-1] < found.losses[0]


@pytest.mark.slow
def test_a_run_that_fails_is_told():
    with pytest.raises(CutsetError, match="no optimizer 'none'"):
        measure("cutset.models:digits", machines=2, optimizer="none")


def test_the_table_compares_with_the_bound():
    found = MemoryPeaks("net", 1000, 400_000_000, {"launcher": 100_000_000, "worker-0.0": 700_000_000}, 3.0)
    assert found.bound_bytes == 660_000_000
    assert not found.held
    out = io.StringIO()
    tabulate(found).print(Console(file=out, width=200))
    words = out.getvalue()
    assert words.index("worker-0.0") < words.index("launcher")
    assert "106%" in words
    assert "A process exceeds the bound" in words
    assert "Losses" not in words


def test_a_stated_bound_counts_and_a_few_losses_are_shown():
    losses = tuple(float(step) for step in range(100, 0, -1))
    found = MemoryPeaks("net", 1000, 4_000, {"launcher": 2 * 10**9}, 3.0, machines=8, limit=3 * 10**9, losses=losses)
    assert found.held
    out = io.StringIO()
    tabulate(found).print(Console(file=out, width=200))
    assert "Bound: 2.79 GiB." in out.getvalue()
    assert "Losses, first to last: 100, 84, 68, 52, 36, 20, 4, 1." in out.getvalue()
