"""Coordinator, shards and replicas of a batch method killed at random, two at once: the same loss in the end."""

import random
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from train_with_faults import Outcome, Signal, train_with_faults

from cutset.ps.methods.sandblaster import Sandblaster
from cutset.tools.config.run_config import RunConfig

ITERATIONS, KILLS, SEEDS = 40, 4, range(20)
ROLES = ["coordinator", "shard-0", "shard-1", "worker-0.0", "worker-1.0"]
LAST = ["worker-0.1", "worker-1.1"]  # where the model is cut

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

DisturbedRun = Callable[..., Outcome]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The last loss of runs that nothing disturbs, by machines of a replica."""
    found = {}
    for machines in (1, 2):
        outcome = train_with_faults(options(tmp_path_factory.mktemp("calm"), machines), [])
        assert outcome.error is None
        found[machines] = outcome.result["iterations"][-1]["loss"]
    return found


def options(out: Path, machines: int) -> RunConfig:
    """Of a run in which nothing converges before the last iteration."""
    task = "cutset.models:digits_softmax(double=True)" if machines == 1 else "cutset.models:digits"
    return RunConfig(
        task=task,
        batch=40 if machines == 1 else 479,
        method=Sandblaster(iterations=ITERATIONS, l2=1e-3),
        out=out,
        machines=machines,
        replicas=2,
        shards=2,
        baseline=False,
        restarts=10,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_final_loss_is_the_same_whatever_is_killed(
    seed: int, calm: dict[int, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    chance, machines = random.Random(seed), 2 if seed % 4 == 3 else 1
    roles = ROLES + (LAST if machines == 2 else [])
    steps = sorted(chance.sample(range(1, ITERATIONS - 1), KILLS - 1))
    kills = [Signal(chance.choice(roles), signal.SIGKILL, step) for step in steps]
    first, second = chance.sample(roles, 2)  # at the same time
    kills[-1:] = [Signal(role, signal.SIGKILL, steps[-1]) for role in (first, second)]
    outcome = train_with_faults(replace(options(tmp_path / "run", machines)), kills)
    assert outcome.happened
    assert outcome.error is None
    assert outcome.result["iterations"][-1]["loss"] == calm[machines]
    assert [one["number"] for one in outcome.result["iterations"]] == list(range(1, ITERATIONS + 1))
    # Two machines of a replica are lost together.
    assert len(outcome.happened) - 1 <= len(outcome.result["restarts"]) <= len(outcome.happened)
