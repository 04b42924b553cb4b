"""A script of a user that trains its own task, and leaves what the command leaves."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
    import torch
    import cutset
    from torch import nn


    class Points(torch.utils.data.Dataset):
        def __init__(self, split):
            self.x = torch.randn(64, 4, generator=torch.Generator().manual_seed(len(split)))

        def __len__(self):
            return 64

        def __getitem__(self, i):
            return self.x[i], int(self.x[i].sum() > 0)


    def task(width=8):
        net = lambda: nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
        return cutset.Task("points", net, nn.functional.cross_entropy, data=Points, batch=8)


    {guard}
        result = cutset.train(task, replicas=2, method="sync", lr_schedule="linear", out="run", baseline=False)
        print(result["verdict"])
"""


def start(folder: Path, guard: str) -> "subprocess.CompletedProcess[str]":
    (folder / "mine.py").write_text(textwrap.dedent(SCRIPT).replace("{guard}", guard))
    return subprocess.run([sys.executable, "mine.py"], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_script_trains_its_own_task_and_leaves_what_the_command_leaves(tmp_path: Path) -> None:
    done = start(tmp_path, 'if __name__ == "__main__":')
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "result.json", "report.html", "model.safetensors", "checkpoint", "logs"} <= left
    assert json.loads((tmp_path / "run" / "config.json").read_text())["task"] == f"{tmp_path / 'mine.py'}:task"


@pytest.mark.slow
def test_the_command_trains_the_same_bits(tmp_path: Path) -> None:
    assert start(tmp_path, 'if __name__ == "__main__":').returncode == 0
    command = [Path(sys.executable).with_name("cutset"), "train", "mine.py:task", "--replicas", "2", "--no-baseline"]
    options = ["--method", "sync", "--lr-schedule", "linear", "--out", "again"]
    subprocess.run([*command, *options], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("run", "again")]
    assert weights[0] == weights[1]


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["if True:"])
def test_a_script_that_trains_whenever_it_is_imported_is_told_so(tmp_path: Path, guard: str) -> None:
    done = start(tmp_path, guard)
    assert done.returncode != 0
    assert "E306: cutset.train is called by" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr
