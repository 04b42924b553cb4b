"""What other programs had of the cores is what all processes had, without this one and those that came of it."""

import os
import time
from pathlib import Path

import pytest

from cutset.tools.measured import other_work
from cutset.tools.measured.other_work import CoresUsed, OtherWork

TICK = os.sysconf("SC_CLK_TCK")


class Machine:
    """Two cores and some processes, as in /proc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds = 100.0
        self.work(others=0.0, own=0.0, stolen=0.0)

    def work(self, *, others: float, own: float, stolen: float) -> None:
        """Have the cores worked for so many seconds in all; of our own, a child has half, one that ended the rest."""
        busy, lost = (round(seconds * TICK / 2) for seconds in (others + own, stolen))
        core = f"{busy // 2} 0 {busy - busy // 2} 7 9 0 0 {lost} 0 0"
        (self.folder / "stat").write_text(f"cpu  0\ncpu0 {core}\ncpu1 {core}\ncpu2 99 0 0 0 0 0 0 0 0 0\nintr 1 2\n")
        half = round(own * TICK / 2)
        self.add(1, 0, 0, 0)
        self.add(os.getpid(), 1, 0, half)
        self.add(90001, os.getpid(), half, 0)
        self.add(90002, 1, round(others * TICK), 0)

    def add(self, process: int, parent: int, ticks: int, of_children: int) -> None:
        (self.folder / str(process)).mkdir(exist_ok=True)
        text = f"{process} (a (b) c) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 {of_children} 0 20 0 1"
        (self.folder / str(process) / "stat").write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(other_work, "PROC", tmp_path)
    monkeypatch.setattr(other_work, "read_cores", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(time, "monotonic", lambda: made.seconds)
    return made


def find(machine: Machine, *, seconds: float = 10.0, **work: float) -> OtherWork | None:
    begin = CoresUsed.read()
    assert begin is not None
    machine.seconds += seconds
    machine.work(**work)
    return begin.find_other_work()


def test_own_processes_do_not_count(machine: Machine) -> None:
    others = find(machine, others=1.0, own=19.0, stolen=0.0)
    assert others is not None
    assert others.programs == pytest.approx(0.1, abs=0.01)
    assert not others.is_worth_saying


def test_other_programs_and_guests_do(machine: Machine) -> None:
    others = find(machine, others=8.0, own=6.0, stolen=6.0)
    assert others is not None
    assert others.is_worth_saying
    assert others.describe() == (
        "other programs had 0.8 and other guests of this virtual machine's host had 0.6 of 2 cores"
    )


def test_a_moment_says_nothing(machine: Machine) -> None:
    assert find(machine, seconds=0.5, others=1.0, own=0.0, stolen=0.0) is None


def test_nor_does_a_part_of_cores_that_others_have_too(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_work, "read_cores", lambda: 1)
    assert CoresUsed.read() is None


def test_nor_a_system_that_does_not_tell(machine: Machine) -> None:
    (machine.folder / "stat").write_text("cpu  1 2 3\n")
    assert CoresUsed.read() is None
    (machine.folder / "stat").unlink()
    assert CoresUsed.read() is None


def test_what_this_process_does_is_its_own() -> None:
    begin = CoresUsed.read()
    if begin is None:
        pytest.skip("this system does not tell what cores do, or gives a part of them")
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    now = CoresUsed.read()
    assert now is not None
    assert 0.1 < now.own_s - begin.own_s < 2.0
