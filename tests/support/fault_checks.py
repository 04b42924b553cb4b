"""What is asked of runs whose processes are killed, stopped or told to end, whichever they are."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from busy import stretch
from safetensors.torch import load_file
from train_with_faults import Signal, train_with_faults
from training_command import GOOD, LOST, PROMISED_S, Run, Start, ended, listening

from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import Adagrad
from cutset.tools.config.run_config import RunConfig
from cutset.tools.training import recovery_points

NORMED = Path(__file__).parents[1] / "chaos" / "normed_digits.py"
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Of two replicas of a model on two machines, and a shard."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    return RunConfig(
        task=f"{GOOD}:task",
        method=Downpour(),
        optimizer=Adagrad(0.05),
        out=tmp_path / "run",
        machines=2,
        replicas=2,
        epochs=60,
        baseline=False,
    )


def check_killed(training: Run, role: str) -> None:
    """A killed process ends the run with its name."""
    sockets, since = training.listening(), time.monotonic()
    os.kill(training.pid(role), signal.SIGKILL)
    assert ended(training, sockets, since) == LOST
    assert f"error E602: {role} was killed by SIGKILL (it" in training.said
    assert "Traceback" not in training.said


def check_told_to_end(training: Run, number: signal.Signals, code: int, said: str) -> None:
    """A run that is told to end does."""
    sockets, since = training.listening(), time.monotonic()
    training.process.send_signal(number)
    assert ended(training, sockets, since) == code
    assert said in training.said
    assert "Traceback" not in training.said


def check_all_need_each_other(start: Start, method: str, role: str) -> None:
    """A killed process ends the run, however many restarts there may be.

    All-reduce has no gradient without one replica, Hogwild no memory.
    """
    run = start(f"{GOOD}:task", "--replicas", 2, "--epochs", 1_000_000, "--lr", 0.001, "--method", method)
    run.wait_for(f"{method}: ")
    assert not any("/dev/shm/" in maps for maps in run.maps()), "memory with a name would be left"
    assert any("memfd:cutset" in maps for maps in run.maps()) == (method == "hogwild")
    sockets, since = run.listening(), time.monotonic()
    os.kill(run.pid(role), signal.SIGKILL)
    assert run.end() == LOST
    assert time.monotonic() - since < stretch(PROMISED_S)
    assert not sockets & listening()
    assert f"error E602: {role} was killed by SIGKILL (it" in run.said


def check_a_shard_goes_on(options: RunConfig, number: signal.Signals) -> None:
    """A shard that was lost goes on from its journal."""
    outcome = train_with_faults(replace(options, shards=2), [Signal("shard-1", number, 30)])
    assert outcome.error is None
    (restart,) = outcome.result["restarts"]
    assert restart["role"] == "shard 1"
    assert restart["seconds"] > 0
    assert outcome.result["test_accuracy"] > 0.9
    assert not (options.out / "journal").exists()


def check_bits_after_losses(options: RunConfig, faults: list[Signal], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in lock step that loses roles goes back, not to its beginning, and ends with the same bits."""
    monkeypatch.setattr(recovery_points, "INTERVAL_S", 0.05)
    options = replace(options, task=f"{NORMED}:task", shards=2)
    undisturbed = train_with_faults(replace(options, out=options.out / "undisturbed"), [])
    disturbed = train_with_faults(replace(options, out=options.out / "disturbed"), faults)
    assert undisturbed.error is None
    assert disturbed.error is None
    assert disturbed.happened == faults
    assert disturbed.result["restarts"]
    assert max(restart["step"] for restart in disturbed.result["restarts"]) > 0
    weights, others = (load_file(options.out / name / "model.safetensors") for name in ("undisturbed", "disturbed"))
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []
