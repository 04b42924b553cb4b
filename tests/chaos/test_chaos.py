"""Faults at random places of real runs: each recovers, or ends in a named error within ten seconds; nothing is left.

They take minutes, so they are no part of `make test`: `make chaos`.
"""

import os
import random
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from busy import stretch
from places import USER_MODELS
from train_with_faults import Fault, Signal, random_fault, roles_of, train_with_faults

from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.registry import parse_method
from cutset.ps.optimizers.standard import Adagrad
from cutset.runtime.hosts import role_process
from cutset.runtime.hosts.role_process import _ServerProcess
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.train import run

NORMED = Path(__file__).with_name("normed_digits.py")
GOOD = USER_MODELS / "good.py"
MACHINES, PROMISED_S = 2, 10.0
METHODS = [
    "downpour",
    "ssp",
    "easgd",
    "sync",
    "sync:backups=1",
    "averaging:every=5",
    "diloco:every=5",
    "hogwild",
    "allreduce",
]
CANNOT_RECOVER = ("hogwild", "allreduce")  # from the loss of a shard, and of anybody
SEEDS = range(int(os.environ.get("CUTSET_CHAOS", "10")))

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture(autouse=True)
def _servers_end_with_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept for the next test here: neither processes nor descriptors."""
    monkeypatch.setattr(role_process, "_ServerProcess", _ServerProcess)


def open_files() -> set[str]:
    """Sockets, pipes, processes and memory that this process holds."""
    files = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return {file for file in files if file.startswith(("socket:", "anon_inode:", "pipe:", "/memfd:"))}


@pytest.fixture
def options(tmp_path: Path) -> RunConfig:
    return RunConfig(
        task=f"{GOOD}:task",
        method=Downpour(),
        optimizer=Adagrad(0.05),
        out=tmp_path / "run",
        machines=MACHINES,
        replicas=2,
        shards=2,
        epochs=80,
        baseline=False,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_recovers_or_ends_soon_in_a_named_error(options: RunConfig, seed: int) -> None:
    """With one fault or two, at the same time or one after the other, in any method."""
    files, chance = open_files(), random.Random(seed)
    method = chance.choice(METHODS)
    machines = chance.choice((1, MACHINES))
    options = replace(options, method=parse_method(method), machines=machines)
    roles = roles_of(options, machines)
    steps = sorted(chance.choice((step, step, step + 1, 300)) for step in chance.choices(range(20, 300), k=1))
    steps += [chance.choice((steps[0], steps[0] + 5, 320))] if chance.random() < 0.7 else []
    faults = [random_fault(chance.randrange(1 << 30), roles, range(step, step + 1)) for step in steps]
    outcome = train_with_faults(options, faults)
    said = f"{method} {outcome.happened}: {outcome.error or outcome.notes}; {outcome.seconds:.1f} s after it"
    print(said)  # noqa: T201
    hit = {name for fault in outcome.happened for name in named(fault)}
    if outcome.error is not None:
        assert method in CANNOT_RECOVER, said
        assert outcome.seconds < stretch(PROMISED_S), said
        assert any(role in outcome.error.facts for role in hit), said
        assert re.fullmatch(r"E602|E606|E514|E502", outcome.error.code), said
    else:
        assert outcome.result["test_accuracy"] > 0.9, said
        # Who shares a replica with one that is lost is restarted with it, and may be the first to say so.
        blamed = [restart["reason"] for restart in outcome.result["restarts"]]
        assert all(any(name.partition(".")[0] in reason for name in hit) for reason in blamed), said
    assert open_files() <= files
    assert not list((Path("/proc/self/task") / str(os.getpid()) / "children").read_text().split())


def named(fault: Fault) -> list[str]:
    """The roles that a fault concerns."""
    return [fault.role] if isinstance(fault, Signal) else [fault.a, fault.b]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("task", ["cutset.models:digits", f"{NORMED}:task"], ids=["plain", "normed"])
def test_the_accuracy_is_the_same_though_one_replica_is_killed_twice(tmp_path: Path, task: str, seed: int) -> None:
    """On real digits, each replica on two machines; within one point of the undisturbed run."""
    options = RunConfig(
        task=task,
        method=Downpour(),
        optimizer=Adagrad(0.02),
        out=tmp_path / "run",
        machines=MACHINES,
        replicas=2,
        shards=2,
        epochs=60,
        seed=seed,
        baseline=False,
    )
    undisturbed = run(prepare(options))["test_accuracy"]
    steps = prepare(options).training.steps
    chance, victim = random.Random(seed), f"worker-{seed % 2}.{seed % MACHINES}"
    spans = (range(steps // 8, steps // 4), range(steps // 2, 3 * steps // 4))
    kills = [Signal(victim, signal.SIGKILL, chance.choice(span)) for span in spans]
    outcome = train_with_faults(replace(options, out=tmp_path / "disturbed"), kills)
    assert outcome.error is None
    assert len(outcome.result["restarts"]) == 2
    print(f"{undisturbed:.4f} undisturbed, {outcome.result['test_accuracy']:.4f} with {outcome.notes}")  # noqa: T201
    assert abs(outcome.result["test_accuracy"] - undisturbed) <= 0.01
