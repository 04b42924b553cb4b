"""What a worker is told as it starts: its programs and its slices, and where it begins."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from places import USER_MODELS

from cutset.ps.optimizers.standard import SGD
from cutset.runtime.worker.program import Program
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.configure import choose_shard_count
from cutset.tools.job.job import Job, make_worker_spec
from cutset.tools.job.prepare import prepare

GOOD = USER_MODELS / "good.py"


def prepared(monkeypatch: pytest.MonkeyPatch, out: Path, machines: int) -> Job:
    monkeypatch.setattr(sys, "path", sys.path[:])
    return prepare(
        RunConfig(
            f"{GOOD}:task",
            optimizer=SGD(0.1),
            out=out,
            machines=machines,
            replicas=2,
            shards=1,
            baseline=False,
        )
    )


def test_each_machine_has_its_own_programs_and_slices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = prepared(monkeypatch, tmp_path, 2)
    setups = [make_worker_spec(job, 1, machine, 3, 7) for machine in range(2)]
    assert [(one.replica, one.machine, one.machines, one.incarnation, one.start_step) for one in setups] == [
        (1, 0, 2, 3, 7),
        (1, 1, 2, 3, 7),
    ]
    assert [msgspec.msgpack.decode(one.programs[0], type=Program) for one in setups] == list(job.programs)
    assert [msgspec.msgpack.decode(one.evaluations[0], type=Program) for one in setups] == list(job.evaluations)
    assert [piece for one in setups for piece in one.slices] == sorted(job.slices, key=lambda piece: piece.machine)
    assert all(one.slices for one in setups)


def test_an_uncut_model_has_no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setup = make_worker_spec(prepared(monkeypatch, tmp_path, 1), 0, 0, 0)
    assert (setup.programs, setup.evaluations) == ([], [])


def test_where_the_run_goes_on_from_a_checkpoint_it_begins_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And is told where its parameters lie, for what the optimizer remembers of them."""
    job = prepared(monkeypatch, tmp_path, 1)
    assert (make_worker_spec(job, 0, 0, 0).start_step, make_worker_spec(job, 0, 0, 0).regions) == (0, [])
    later = replace(
        job, training=msgspec.structs.replace(job.training, start_step=5, optimizer_state={"memory": "file"})
    )
    assert [make_worker_spec(later, 0, 0, 0, start_step).start_step for start_step in (0, 4, 6)] == [5, 5, 6]
    assert make_worker_spec(later, 0, 0, 0).regions == job.regions[0]


@pytest.mark.parametrize(
    ("on", "replicas", "shards"),
    [(None, 2, 3), (None, 85, 1), ("ssh:cluster.toml", 85, 3), ("ssh:cluster.toml", 1365, 1)],
)
def test_a_cut_run_has_a_shard_for_each_machine_while_there_is_room(on: str | None, replicas: int, shards: int) -> None:
    plan: Any = SimpleNamespace(is_cut=True, programs=[None] * 3)
    config = RunConfig(f"{GOOD}:task", optimizer=SGD(0.1), replicas=replicas, on=on)
    assert choose_shard_count(config, plan) == shards
