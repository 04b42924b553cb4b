"""Processes that only wait give batches no sooner than their waits allow, and end with who asks them."""

import subprocess
import time

import pytest

from cutset.tools.bench.training import data_speed
from cutset.tools.bench.training.bare_waits import AHEAD, measure_bare_waits, waiting_processes
from cutset.tools.task.load_task import TaskSpec


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """The processes that the test starts."""
    processes = list[subprocess.Popen[bytes]]()

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            processes.append(self)

    monkeypatch.setattr("cutset.tools.bench.training.bare_waits.subprocess.Popen", Noted)
    return processes


def test_a_batch_takes_its_waits(started: list["subprocess.Popen[bytes]"]) -> None:
    waits, seconds, count = 4, 0.01, 2
    with waiting_processes(count, waits, seconds) as await_batch:
        await_batch()
        began = time.perf_counter()
        more = (AHEAD + 1) * count
        for _ in range(more):
            await_batch()
        assert time.perf_counter() - began >= (more // count - 1) * waits * seconds
        assert [process.poll() for process in started] == [None, None]
    assert [process.returncode for process in started] == [0, 0]


def test_processes_that_have_ended_are_not_waited_for(started: list["subprocess.Popen[bytes]"]) -> None:
    with waiting_processes(2, 1, 10.0) as await_batch:
        for process in started:
            process.kill()
        with pytest.raises(RuntimeError, match="the processes that wait have ended"):
            await_batch()


@pytest.mark.run
def test_steps_beside_waits_are_no_faster_than_the_waits() -> None:
    spec = TaskSpec(f"{data_speed.__name__}:images(width=64)")
    assert 0 < measure_bare_waits(spec, 0.001, processes=1, threads=1, lr=0.01) < 1000, "a sample waits 1 ms"
    assert measure_bare_waits(spec, 0.0, processes=1, threads=1, lr=0.01) > 1000, "nothing waits"
