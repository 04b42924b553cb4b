"""Replicas join and leave while training, and others take what a lost one had: all batches are used."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disturbed import Signal, disturbed

from cutset.ps.downpour import Downpour
from cutset.ps.gradient_rules import Adagrad
from cutset.ps.methods import AnyMethod
from cutset.ps.ssp import SSP
from cutset.tools.load import TaskSpec
from cutset.tools.planning import Wanted
from cutset.tools.prepare import Options, prepare
from cutset.tools.scaling import wish
from cutset.tools.train import run

CUTSET = Path(sys.executable).with_name("cutset")


GATED = """
    import os
    from pathlib import Path

    from cutset.models.digits_tasks import digits, mlp
    from torch import nn

    class Model(nn.Module):
        \"""Waits at its 200th step until it is let through. What it does depends on data, so that it is not traced.\"""

        def __init__(self):
            super().__init__()
            self.net, self.calls = mlp(), 0

        def forward(self, x):
            self.calls += self.training and x.sum() > 0
            if self.calls == 200:
                gate = os.open(Path(__file__).with_name("gate"), os.O_RDONLY)
                os.read(gate, 1)
                os.close(gate)
            return self.net(x)

    def task():
        own = digits()
        return type(own)("gated", Model, own.loss, own.example, own.data, batch=own.batch)
"""


def options(out: Path, task: str, method: AnyMethod, **more: Any) -> Options:
    return Options(TaskSpec(task), method, Adagrad(0.02), out, baseline=False, **more)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[int]:
    """What the model waits for, to be written to."""
    (tmp_path / "gated.py").write_text(textwrap.dedent(GATED))
    os.mkfifo(tmp_path / "gate")
    file = os.open(tmp_path / "gate", os.O_RDWR)
    yield file
    os.close(file)


@pytest.mark.parametrize("method", [Downpour(warm_start=20), SSP(2)])
def test_replicas_join_and_leave_while_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: int, method: AnyMethod
) -> None:
    """From 1 to 2 and back. Replica 0 waits in the midst of its work until replica 1 trains."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    folder, notes, asked = tmp_path / "run", list[str](), False

    def tell(name: str, step: int, steps: int, loss: float) -> None:
        nonlocal asked
        if not asked:
            asked = True
            command = [str(CUTSET), "scale", str(folder), "--replicas", "2"]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            assert "for 2 replicas instead of 1" in said

    def note(words: str) -> None:
        notes.append(words)
        if words.startswith("replica 1 trains"):
            wish(folder, 1)
            os.write(gate, b"12")  # for both

    result = run(prepare(options(folder, f"{tmp_path / 'gated.py'}:task", method, epochs=15)), tell, note=note)
    shares = result["shares"]
    assert [(change["replica"], change["how"]) for change in shares["changes"]] == [(1, "joined"), (1, "left")]
    assert [re.split("[,;]", words)[0] for words in notes] == [
        "replica 1 joins",
        "replica 1 trains",
        "replica 1 is asked to leave",
        "replica 1 has left",
    ]
    assert sum(shares["taken"].values()) == shares["batches"]
    assert 0 < shares["taken"]["1"] < shares["taken"]["0"]
    assert shares["repeated"] == {}
    assert result["test_accuracy"] > 0.93
    curve = result["rows"][-1]["curve"]
    assert [point["samples"] for point in curve] == sorted(point["samples"] for point in curve)
    assert curve[-1]["samples"] == result["rows"][-1]["samples"]
    assert {name.partition(".")[0] for name in result["staleness"]} == {"worker-0", "worker-1"}
    assert not [file.name for file in folder.iterdir() if "replicas" in file.name or "lock" in file.name]


def test_others_take_what_a_killed_replica_had(tmp_path: Path) -> None:
    """It is killed when a quarter is done; all is done, though some of it perhaps twice, and the report says so."""
    spec = "cutset.models:digits"
    job = options(tmp_path / "run", spec, Downpour(), wanted=Wanted(2), replicas=2, epochs=20)
    outcome = disturbed(job, [Signal("worker-1.1", signal.SIGKILL, 300)])
    assert outcome.error is None
    assert len(outcome.happened) == 1
    shares, (restart,) = outcome.result["shares"], outcome.result["restarts"]
    assert restart["replica"] == 1
    assert sum(shares["taken"].values()) == shares["batches"]
    assert shares["taken"]["0"] > shares["batches"] // 2
    assert shares["repeated"].keys() <= {"1"}
    said = [f"{n} batches at most were computed again after replica 1 was lost." for n in shares["repeated"].values()]
    assert [note for note in outcome.result["notes"] if "computed again" in note] == said
    assert any(note.startswith(f"Replica 0 took {shares['taken']['0']} of") for note in outcome.result["notes"])
    assert outcome.result["test_accuracy"] > 0.93
