"""The samples of each portion."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from places import USER_MODELS

from cutset.ps.sandblaster.solver import Portions
from cutset.tools.samples.read_samples import read_split
from cutset.tools.sandblaster.roles import PortionData
from cutset.tools.task.load_task import TaskSpec, load_task

STATUS = Path("/proc/self/status")
SAMPLES, INPUTS = 250_000, 256  # 256 MB


def resident() -> int:
    """Bytes of this process that are in memory."""
    found = re.search(r"VmRSS:\s+(\d+)", STATUS.read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.skipif(not STATUS.exists(), reason="finds memory in /proc")
def test_of_samples_in_a_file_only_those_of_a_portion_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    model = Path(shutil.copy(USER_MODELS / "mapped.py", tmp_path))
    np.lib.format.open_memmap(tmp_path / "train.npy", mode="w+", dtype=np.float32, shape=(SAMPLES, INPUTS))
    before = resident()
    samples = read_split(load_task(TaskSpec(f"{model}:task")), "train")
    portions = Portions(SAMPLES, 100)
    data = PortionData(samples, portions, seed=0)
    seen = [data.read(portion) for portion in (0, 7, portions.count - 1)]
    assert resident() - before < SAMPLES * INPUTS  # a quarter of the file
    assert [part.inputs[0].shape for part in seen] == [(100, INPUTS)] * 3
    assert len(np.unique(np.concatenate([part.targets[0].numpy() for part in seen]))) == 10
