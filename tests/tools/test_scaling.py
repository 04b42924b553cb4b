"""A wish reaches the run whose folder it is left in, once; where no run can heed it, it is refused by name."""

import os
from pathlib import Path

import pytest

from cutset.errors import UsageError
from cutset.tools.training.scale_requests import LOOK_S, STANDING, WISH, Standing, Wishes, wish


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def wishes(folder: Path, notes: list[str], clock: Clock) -> Wishes:
    return Wishes(folder, note=notes.append, clock=clock)


def refused(folder: Path, replicas: int, code: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        wish(folder, replicas)
    assert caught.value.code == code
    assert caught.value.fix
    return caught.value


def test_a_wish_is_taken_once(tmp_path: Path) -> None:
    notes, clock = list[str](), Clock()
    with wishes(tmp_path, notes, clock) as run:
        run.stand(Standing("downpour", 2, 8))
        assert run.take() is None
        assert wish(tmp_path, 3) == Standing("downpour", 2, 8)
        assert run.take() is None  # it has just looked
        clock.now += LOOK_S
        assert run.take() == 3
        clock.now += LOOK_S
        assert run.take() is None
        wish(tmp_path, 4)
        wish(tmp_path, 5)
        clock.now += LOOK_S
        assert run.take() == 5
    assert list(tmp_path.iterdir()) == []
    assert notes == []


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with wishes(tmp_path, [], Clock()) as run:
        assert "no run trains" in refused(tmp_path, 2, "E276").facts  # it has said nothing yet
        run.stand(Standing("sync", 2, 0))
        assert "trains by sync, which needs the replicas" in refused(tmp_path, 3, "E273").facts
        run.stand(Standing("ssp", 2, 5))
        assert refused(tmp_path, 0, "E274").fix == "--replicas 1"
        assert refused(tmp_path, 6, "E274").fix == "--replicas 5"
        assert not (tmp_path / WISH).exists()
    assert "it is over" in refused(tmp_path, 2, "E276").facts
    assert "no such folder" in refused(tmp_path / "nowhere", 2, "E276").facts


def test_a_run_that_was_killed_is_over(tmp_path: Path) -> None:
    run = wishes(tmp_path, [], Clock()).__enter__()
    run.stand(Standing("downpour", 2, 8))
    run._release()  # as the system does when a process ends
    assert (tmp_path / STANDING).exists()
    refused(tmp_path, 2, "E276")
    with wishes(tmp_path, [], Clock()):
        pass


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with wishes(tmp_path, [], Clock()), pytest.raises(UsageError, match="E272: another run trains in"):
        wishes(tmp_path, [], Clock()).__enter__()


def test_a_wish_of_an_earlier_run_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / WISH).write_text('{"replicas": 9}')
    clock = Clock()
    with wishes(tmp_path, [], clock) as run:
        clock.now += LOOK_S
        assert run.take() is None


@pytest.mark.parametrize("text", ["", "{", '{"replicas": "many"}', '{"replicas": 1.5}', "[" * 5000])
def test_a_damaged_wish_is_not_heeded_and_said(tmp_path: Path, text: str) -> None:
    notes, clock = list[str](), Clock()
    with wishes(tmp_path, notes, clock) as run:
        (tmp_path / WISH).write_text(text)
        (tmp_path / WISH).chmod(0o600)
        clock.now += LOOK_S
        assert run.take() is None
        assert not (tmp_path / WISH).exists()
    assert len(notes) == 1
    assert "is not heeded" in notes[0]


@pytest.mark.parametrize("kind", ["others may write", "a link", "a pipe"])
def test_a_wish_that_others_may_have_written_is_not_heeded(tmp_path: Path, kind: str) -> None:
    notes, clock = list[str](), Clock()
    with wishes(tmp_path, notes, clock) as run:
        path = tmp_path / WISH
        if kind == "a pipe":
            os.mkfifo(path, 0o600)
        elif kind == "a link":
            (tmp_path / "elsewhere").write_text('{"replicas": 3}')
            path.symlink_to(tmp_path / "elsewhere")
        else:
            path.write_text('{"replicas": 3}')
            path.chmod(0o666)
        clock.now += LOOK_S
        assert run.take() is None
    assert len(notes) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with wishes(tmp_path, [], Clock()) as run:
        run.stand(Standing("downpour", 2, 8))
        (tmp_path / f"{WISH}.new").mkdir()
        assert WISH in refused(tmp_path, 3, "E275").facts
        (tmp_path / f"{WISH}.new").rmdir()
