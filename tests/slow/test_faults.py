"""More processes that are killed, stopped or told to end, as in tests/test_faults.py."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from fault_checks import (
    NEEDS_PROC,
    check_a_shard_goes_on,
    check_all_need_each_other,
    check_bits_after_losses,
    check_killed,
    check_told_to_end,
)
from fault_checks import options as options
from train_with_faults import Signal, train_with_faults
from training_command import GOOD, INTERRUPTED, START_S, TERMINATED, Run, Start

from cutset.ps.methods.hogwild import Hogwild
from cutset.ps.methods.local_sgd import Averaging, DiLoCo
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import SGD, AdamW
from cutset.tools.config.run_config import RunConfig

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


def test_a_role_whose_process_does_not_end_loses_nothing(start: Start, tmp_path: Path) -> None:
    """It has delivered its result; what the user's code left behind is killed and noted."""
    file = tmp_path / "lasting.py"
    left_behind = 'import atexit, sys, time\nif "-m" in sys.orig_argv:\n    atexit.register(time.sleep, 600)\n'
    file.write_text(GOOD.read_text() + left_behind)
    run = start(f"{file}:task", "--machines", 2, "--shards", 1, "--epochs", 1)
    assert run.end(timeout_s=START_S) == 0
    notice = "worker-0.0 had delivered its result when its process ended by SIGKILL; nothing is lost"
    assert notice in run.said
    assert notice in json.loads((tmp_path / "run" / "result.json").read_text())["notices"]
    assert {"result.json", "model.safetensors"} <= {entry.name for entry in (tmp_path / "run").iterdir()}
    assert (tmp_path / "run" / "checkpoint" / "manifest.json").exists()


def test_a_killed_shard_ends_a_run_that_needs_all_replicas(start: Start) -> None:
    check_all_need_each_other(start, "allreduce", "shard-0")


def test_a_lost_replica_continues_in_shared_memory(options: RunConfig) -> None:
    outcome = train_with_faults(replace(options, method=Hogwild()), [Signal("worker-0.1", signal.SIGKILL, 30)])
    assert outcome.error is None
    (restart,) = outcome.result["restarts"]
    assert restart["role"] == "replica 0"
    assert outcome.result["test_accuracy"] > 0.9
    assert not any("+" in name for name in outcome.result["staleness"])


def test_a_stopped_shard_continues_from_its_journal(options: RunConfig) -> None:
    check_a_shard_goes_on(options, signal.SIGSTOP)


@pytest.mark.slow
def test_a_worker_and_a_shard_lost_together_in_lock_step_change_no_bit(
    options: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pushes of the worker that the shard's file lacks are nowhere any more."""
    options = replace(
        options, method=Sync(), optimizer=SGD(0.05, momentum=0.9), compress="topk:fraction=0.3", epochs=10
    )
    faults = [Signal(role, signal.SIGKILL, 150) for role in ("shard-0", "worker-0.0")]
    check_bits_after_losses(options, faults, monkeypatch)


@pytest.mark.parametrize(
    ("method", "roles"),
    [(DiLoCo(every=5), ("shard-0", "shard-1")), (Averaging(every=5), ("shard-0", "worker-1.1"))],
    ids=["diloco", "averaging"],
)
@pytest.mark.first_cases(1)
def test_losses_in_local_sgd_change_no_bit(
    options: RunConfig, monkeypatch: pytest.MonkeyPatch, method: Averaging | DiLoCo, roles: tuple[str, ...]
) -> None:
    """Not even those of the replicas' own optimizers."""
    options = replace(options, method=method, optimizer=AdamW(0.002), epochs=10)
    faults = [Signal(role, signal.SIGKILL, 150) for role in roles]
    check_bits_after_losses(options, faults, monkeypatch)
