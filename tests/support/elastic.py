"""Replicas that join and leave while training, by any method that hands batches out."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from listening import Listening

from cutset.ps.methods.registry import AnyMethod
from cutset.ps.optimizers.standard import Adagrad
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.leases.scale_requests import request_replicas
from cutset.tools.train import run

CUTSET = Path(sys.executable).with_name("cutset")

GATED = """
    import os
    from pathlib import Path

    from cutset.models.tasks.digits import digits, mlp
    from torch import nn

    class Model(nn.Module):
        \"""Waits at its 200th step until it is let through. What it does depends on data, so that it is not traced.\"""

        def __init__(self):
            super().__init__()
            self.net, self.calls = mlp(), 0

        def forward(self, x):
            self.calls += self.training and x.sum() > 0
            if self.training and self.calls == 200:  # an evaluation may follow before the next step
                gate = os.open(Path(__file__).with_name("gate"), os.O_RDONLY)
                os.read(gate, 1)
                os.close(gate)
            return self.net(x)

    def task():
        own = digits()
        return type(own)("gated", Model, own.loss, own.example, own.data, batch=own.batch)
"""


def options(out: Path, task: str, method: AnyMethod, **more: Any) -> RunConfig:
    return RunConfig(task, method=method, optimizer=Adagrad(0.02), out=out, baseline=False, **more)


@contextmanager
def gate_of(folder: Path) -> Iterator[int]:
    """The model's file, and what it waits for, to be written to."""
    (folder / "gated.py").write_text(textwrap.dedent(GATED))
    os.mkfifo(folder / "gate")
    file = os.open(folder / "gate", os.O_RDWR)
    try:
        yield file
    finally:
        os.close(file)


def check_joining_and_leaving(tmp_path: Path, method: AnyMethod) -> None:
    """From 1 to 2 and back. Replica 0 waits in the midst of its work until replica 1 trains."""
    folder, notes, asked = tmp_path / "run", list[str](), False

    def on_step(step: int, loss: float) -> None:
        nonlocal asked
        if not asked:
            asked = True
            command = [str(CUTSET), "scale", str(folder), "--replicas", "2"]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            assert "2 replicas instead of 1" in said

    def on_notice(words: str) -> None:
        notes.append(words)
        if words.startswith("replica 1 trains"):
            request_replicas(folder, 1)
            os.write(gate, b"12")  # for both

    with gate_of(tmp_path) as gate:
        result = run(
            prepare(options(folder, f"{tmp_path / 'gated.py'}:task", method, epochs=15)),
            Listening(on_step, on_notice=on_notice),
        )
    participation = result["participation"]
    assert [(change["replica"], change["change"]) for change in participation["changes"]] == [
        (1, "joined"),
        (1, "left"),
    ]
    assert [re.split("[,;]", words)[0] for words in notes] == [
        "replica 1 joins",
        "replica 1 trains",
        "replica 1 is asked to leave",
        "replica 1 has left",
    ]
    assert sum(participation["completed"].values()) == participation["batches"]
    assert 0 < participation["completed"]["1"] < participation["completed"]["0"]
    assert participation["recomputed"] == {}
    assert result["test_accuracy"] > 0.93
    curve = result["rows"][-1]["curve"]
    assert [point["samples"] for point in curve] == sorted(point["samples"] for point in curve)
    assert curve[-1]["samples"] == result["rows"][-1]["samples"]
    assert {name.partition(".")[0] for name in result["staleness"]} == {"worker-0", "worker-1"}
    assert not [file.name for file in folder.iterdir() if "replicas" in file.name or "lock" in file.name]
