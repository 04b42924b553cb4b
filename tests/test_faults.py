"""A killed, stopped or failing process ends a run soon, by name, and nothing of the run is left behind.

One of each kind; tests/slow/test_faults.py has more.
"""

import os
import re
import signal
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fault_checks import (
    NEEDS_PROC,
    check_a_shard_goes_on,
    check_all_need_each_other,
    check_killed,
    check_told_to_end,
)
from fault_checks import options as options
from train_with_faults import Break, Fault, Signal, train_with_faults
from training_command import INTERRUPTED, LOST, PROMISED_S, START_S, Run, Start, ended, gone, listening

from cutset.errors import NetworkError, ProcessLost
from cutset.runtime.hosts.role_process import PROCESS_TITLE
from cutset.tools.config.run_config import RunConfig

pytestmark = NEEDS_PROC

RAISES_LATE = """
    import torch
    from torch import nn
    from cutset import Data, Task


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 2), 0

        def forward(self, x):
            self.calls += 1
            if x.sum() > 1e9 or self.calls > 5:
                raise LookupError("no more wisdom after step 5")
            return self.layer(x)


    def samples(split):
        return Data((torch.ones(80, 4),), (torch.zeros(80, dtype=torch.int64),))


    def example(batch):
        return Data((torch.zeros(batch, 4),), (torch.zeros(batch, dtype=torch.int64),))


    def task():
        return Task("late", Model, nn.functional.cross_entropy, example, samples, batch=8)
"""


@pytest.mark.slow
def test_a_killed_process_ends_the_run_with_its_name(training: Run) -> None:
    check_killed(training, "worker-0.1")


@pytest.mark.slow
def test_a_stopped_process_ends_the_run_with_its_name(training: Run) -> None:
    sockets, since = training.listening(), time.monotonic()
    os.kill(training.pid("worker-0.0"), signal.SIGSTOP)
    assert ended(training, sockets, since) == LOST
    assert re.search(r"error E606: worker-0\.0 stopped answering \d\.\d s ago \(it", training.said)


@pytest.mark.slow
def test_a_run_that_is_interrupted_ends(training: Run) -> None:
    check_told_to_end(training, signal.SIGINT, INTERRUPTED, "interrupted; every process of the run is ended")


@pytest.mark.slow
def test_all_processes_end_when_the_command_is_killed(training: Run) -> None:
    sockets, processes = training.listening(), training.processes()
    assert sorted(line for line in processes.values() if line.startswith(PROCESS_TITLE)) == [
        f"{PROCESS_TITLE} {name}" for name in ("shard-0", "worker-0.0", "worker-0.1")
    ]
    training.process.kill()
    assert gone(list(processes), timeout_s=5.0)
    assert not sockets & listening()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "role"), [pytest.param("allreduce", "worker-1.0", marks=pytest.mark.slow), ("hogwild", "shard-0")]
)
def test_a_killed_process_ends_a_run_that_needs_all_replicas(start: Start, method: str, role: str) -> None:
    check_all_need_each_other(start, method, role)


@pytest.mark.slow
def test_an_exception_of_the_users_code_in_a_worker_is_shown(start: Start, tmp_path: Path) -> None:
    """A model that cannot be traced runs the user's own code in the worker."""
    file = tmp_path / "late.py"
    file.write_text(textwrap.dedent(RAISES_LATE))
    run = start(f"{file}:task", "--machines", 1, "--replicas", 2, "--epochs", 10)
    assert run.end(timeout_s=START_S) == LOST
    assert re.search(r"error E605: worker-\d\.0 raised LookupError: no more wisdom after step 5\n", run.said)
    line = 1 + textwrap.dedent(RAISES_LATE).splitlines().index(
        '            raise LookupError("no more wisdom after step 5")'
    )
    assert f'File "{file}", line {line}, in forward' in run.said
    assert "tools/commands/cli.py" not in run.said


# Losses that are made good --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        pytest.param(
            Signal("worker-0.1", signal.SIGKILL, 30), "worker-0.1 was killed by SIGKILL", marks=pytest.mark.slow
        ),
        (Break("worker-1.0", "worker-1.1", "cut", 30), "the connection from worker-1"),
    ],
)
def test_a_lost_replica_is_restarted(options: RunConfig, fault: Fault, why: str) -> None:
    outcome = train_with_faults(options, [fault])
    assert outcome.error is None
    (restart,) = outcome.result["restarts"]
    assert why in restart["reason"]
    # The other replica may have done all that was left before it was back; but replica 0 tests.
    back = restart["seconds"] is not None
    assert restart["seconds"] > 0 if back else restart["role"] == "replica 1"
    assert any(why in note and ("it was back after" in note) == back for note in outcome.result["notes"])
    said = [f"{restart['role']} restarts at step {restart['step']}: {restart['reason']}"]
    assert outcome.notes == said + ([] if back else ["replica 1 has left"])
    curve = outcome.result["rows"][-1]["curve"]
    assert [point["seconds"] for point in curve] == sorted(point["seconds"] for point in curve)
    assert outcome.result["test_accuracy"] > 0.9
    assert not any("+" in name for name in (*outcome.result["staleness"], *outcome.result["work_s"]))


@pytest.mark.run
def test_a_lost_shard_continues_from_its_journal(options: RunConfig) -> None:
    check_a_shard_goes_on(options, signal.SIGKILL)


@pytest.mark.slow
def test_a_black_hole_within_a_replica_ends_the_run_with_both_names(options: RunConfig) -> None:
    """Both processes live, and both tell the launcher so; it is the link that is blamed."""
    fault = Break("worker-0.0", "worker-0.1", "swallow", 30)
    outcome = train_with_faults(replace(options, replicas=1, epochs=1_000_000, restarts=0), [fault])
    assert isinstance(outcome.error, NetworkError)
    assert outcome.error.code == "E514"
    assert re.match(
        r"the connection from worker-0\.(0 to worker-0\.1|1 to worker-0\.0) \(tcp://.*\) broke", outcome.error.facts
    )
    assert outcome.seconds < PROMISED_S


@pytest.mark.slow
def test_a_replica_at_the_restart_limit_ends_the_run(options: RunConfig) -> None:
    kills = [Signal("worker-1.0", signal.SIGKILL, step) for step in (30, 40)]
    outcome = train_with_faults(replace(options, epochs=1_000_000, restarts=1), kills)
    assert isinstance(outcome.error, ProcessLost)
    assert "worker-1.0+1 was killed by SIGKILL" in outcome.error.facts
    assert "; replica 1 was restarted once before, the most that --restarts allows" in outcome.error.facts


@pytest.mark.slow
def test_a_replica_lost_after_a_shard_learns_the_new_name_of_the_shard(options: RunConfig) -> None:
    """What its workers send to the old name, before they hear of the new one, is to a role that is known to be gone."""
    kills = [Signal("shard-0", signal.SIGKILL, 30), Signal("worker-0.0", signal.SIGKILL, 150)]
    outcome = train_with_faults(options, kills)
    assert outcome.error is None
    assert [restart["role"] for restart in outcome.result["restarts"]] == ["shard 0", "replica 0"]
