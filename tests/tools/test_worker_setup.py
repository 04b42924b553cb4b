"""What a worker is told as it starts: its programs and its slices, and where it begins."""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import SGD
from cutset.runtime.worker.program import Program
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_task import Wanted
from cutset.tools.job.prepare import Options, Prepared, prepare
from cutset.tools.job.job import worker_setup

GOOD = Path(__file__).parent / "user_models" / "good.py"


def prepared(monkeypatch: pytest.MonkeyPatch, out: Path, machines: int) -> Prepared:
    monkeypatch.setattr(sys, "path", sys.path[:])
    wanted = Wanted(machines=machines)
    return prepare(Options(TaskSpec(f"{GOOD}:task"), Downpour(), SGD(0.1), out, wanted, replicas=2, baseline=False))


def test_each_machine_has_its_own_programs_and_slices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = prepared(monkeypatch, tmp_path, 2)
    setups = [worker_setup(job, 1, machine, 3, 7) for machine in range(2)]
    assert [(one.replica, one.machine, one.machines, one.times, one.first) for one in setups] == [
        (1, 0, 2, 3, 7),
        (1, 1, 2, 3, 7),
    ]
    assert [msgspec.msgpack.decode(one.program, type=Program) for one in setups] == list(job.programs)
    assert [msgspec.msgpack.decode(one.evaluation, type=Program) for one in setups] == list(job.evaluations)
    assert [piece for one in setups for piece in one.slices] == sorted(job.slices, key=lambda piece: piece.machine)
    assert all(one.slices for one in setups)


def test_an_uncut_model_has_no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setup = worker_setup(prepared(monkeypatch, tmp_path, 1), 0, 0, 0)
    assert (setup.program, setup.evaluation) == (b"", b"")


def test_where_the_run_goes_on_from_a_checkpoint_it_begins_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And is told where its parameters lie, for what the rule remembers of them."""
    job = prepared(monkeypatch, tmp_path, 1)
    assert (worker_setup(job, 0, 0, 0).first, worker_setup(job, 0, 0, 0).regions) == (0, [])
    later = replace(job, course=msgspec.structs.replace(job.course, first=5, memories={"memory": "file"}))
    assert [worker_setup(later, 0, 0, 0, first).first for first in (0, 4, 6)] == [5, 5, 6]
    assert worker_setup(later, 0, 0, 0).regions == job.regions[0]
