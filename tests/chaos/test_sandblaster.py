"""Coordinator, shards and replicas of a batch method killed at random, two at once: the same loss in the end."""

import random
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from disturbed import Outcome, Signal, disturbed

from cutset.ps.optimizers.standard import SGD
from cutset.ps.methods.sandblaster import Sandblaster
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_task import Wanted
from cutset.tools.job.prepare import Options

ITERATIONS, KILLS, SEEDS = 40, 4, range(20)
ROLES = ["coordinator", "shard-0", "shard-1", "worker-0.0", "worker-1.0"]
LAST = ["worker-0.1", "worker-1.1"]  # where the model is cut

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

Ran = Callable[..., Outcome]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The last loss of runs that nothing disturbs, by machines of a replica."""
    found = {}
    for machines in (1, 2):
        outcome = disturbed(options(tmp_path_factory.mktemp("calm"), machines), [])
        assert outcome.error is None
        found[machines] = outcome.result["iterations"][-1]["loss"]
    return found


def options(out: Path, machines: int) -> Options:
    """Of a run in which nothing converges before the last iteration."""
    task = "cutset.models:digits_softmax(double=True)" if machines == 1 else "cutset.models:digits"
    return Options(
        spec=TaskSpec(task, batch=40 if machines == 1 else 479),
        method=Sandblaster(iterations=ITERATIONS, l2=1e-3),
        rule=SGD(0.1),
        out=out,
        wanted=Wanted(machines),
        replicas=2,
        shards=2,
        baseline=False,
        restarts=10,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_killed_the_loss_in_the_end_is_the_same(
    seed: int, calm: dict[int, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    chance, machines = random.Random(seed), 2 if seed % 4 == 3 else 1
    roles = ROLES + (LAST if machines == 2 else [])
    steps = sorted(chance.sample(range(1, ITERATIONS - 1), KILLS - 1))
    kills = [Signal(chance.choice(roles), signal.SIGKILL, step) for step in steps]
    first, second = chance.sample(roles, 2)  # at the same time
    kills[-1:] = [Signal(role, signal.SIGKILL, steps[-1]) for role in (first, second)]
    outcome = disturbed(replace(options(tmp_path / "run", machines)), kills)
    assert outcome.happened
    assert outcome.error is None
    assert outcome.result["iterations"][-1]["loss"] == calm[machines]
    assert [one["number"] for one in outcome.result["iterations"]] == list(range(1, ITERATIONS + 1))
    # Two machines of a replica are lost together.
    assert len(outcome.happened) - 1 <= len(outcome.result["restarts"]) <= len(outcome.happened)
