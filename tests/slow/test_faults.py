"""More processes that are killed, stopped or told to end, as in tests/test_faults.py."""

import signal
from dataclasses import replace

from disturbed import Signal, disturbed
from fault_checks import NEEDS_PROC, check_a_shard_goes_on, check_all_need_each_other, check_killed, check_told_to_end
from fault_checks import options as options
from training_command import GOOD, INTERRUPTED, TERMINATED, Run, Start

from cutset.ps.methods.hogwild import Hogwild
from cutset.tools.job.prepare import Options

pytestmark = NEEDS_PROC


def test_a_killed_shard_ends_the_run_with_its_name(training: Run) -> None:
    check_killed(training, "shard-0")


def test_a_run_that_is_terminated_ends(training: Run) -> None:
    check_told_to_end(training, signal.SIGTERM, TERMINATED, "")


def test_an_interrupt_before_anything_runs_ends_all(start: Start) -> None:
    run = start(f"{GOOD}:task", "--machines", 2, "--epochs", 1_000_000)
    run.wait_for("cut of ")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == INTERRUPTED


def test_where_all_need_each_other_a_killed_shard_ends_the_run(start: Start) -> None:
    check_all_need_each_other(start, "allreduce", "shard-0")


def test_a_replica_that_was_lost_goes_on_in_the_memory_of_all(options: Options) -> None:
    outcome = disturbed(replace(options, method=Hogwild()), [Signal("worker-0.1", signal.SIGKILL, 30)])
    assert outcome.error is None
    (restart,) = outcome.result["restarts"]
    assert restart["replica"] == 0
    assert outcome.result["test_accuracy"] > 0.9
    assert not any("+" in name for name in outcome.result["staleness"])


def test_a_shard_that_was_stopped_goes_on_from_its_journal(options: Options) -> None:
    check_a_shard_goes_on(options, signal.SIGSTOP)
