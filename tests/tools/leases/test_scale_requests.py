"""A request reaches the run in whose folder it is left, once; where no run can fulfil it, it is refused by name."""

import os
from pathlib import Path

import pytest

from cutset.errors import UsageError
from cutset.tools.leases import scale_requests
from cutset.tools.leases.scale_requests import (
    LIMITS_FILE,
    POLL_S,
    REQUEST_FILE,
    ScaleLimits,
    ScaleRequest,
    ScaleRequests,
    request_replicas,
)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def open_requests(folder: Path, notices: list[str], clock: Clock) -> ScaleRequests:
    return ScaleRequests(folder, on_notice=notices.append, clock=clock)


def refused(folder: Path, replicas: int, code: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        request_replicas(folder, replicas)
    assert caught.value.code == code
    assert caught.value.fix
    return caught.value


def test_a_request_is_taken_once(tmp_path: Path) -> None:
    notices, clock = list[str](), Clock()
    with open_requests(tmp_path, notices, clock) as run:
        run.publish_limits(ScaleLimits("downpour", 2, 8))
        assert run.take_request() is None
        assert request_replicas(tmp_path, 3) == ScaleLimits("downpour", 2, 8)
        assert run.take_request() is None  # it has just looked
        clock.now += POLL_S
        assert run.take_request() == 3
        clock.now += POLL_S
        assert run.take_request() is None
        request_replicas(tmp_path, 4)
        request_replicas(tmp_path, 5)
        clock.now += POLL_S
        assert run.take_request() == 5
    assert list(tmp_path.iterdir()) == []
    assert notices == []


def test_a_request_made_while_another_is_read_is_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, read = Clock(), scale_requests._read_request

    def read_slowly(path: Path) -> ScaleRequest:
        request = read(path)
        monkeypatch.undo()
        request_replicas(tmp_path, 5)
        return request

    with open_requests(tmp_path, [], clock) as run:
        run.publish_limits(ScaleLimits("downpour", 2, 8))
        request_replicas(tmp_path, 4)
        monkeypatch.setattr(scale_requests, "_read_request", read_slowly)
        assert run.take_request() == 4
        clock.now += POLL_S
        assert run.take_request() == 5


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with open_requests(tmp_path, [], Clock()) as run:
        assert "no run trains" in refused(tmp_path, 2, "E276").facts  # it has published nothing yet
        run.publish_limits(ScaleLimits("sync", 2, 0))
        assert "trains by sync, which needs all of its initial replicas" in refused(tmp_path, 3, "E273").facts
        run.publish_limits(ScaleLimits("ssp", 2, 5))
        assert refused(tmp_path, 0, "E274").fix == "--replicas 1"
        assert refused(tmp_path, 6, "E274").fix == "--replicas 5"
        assert not (tmp_path / REQUEST_FILE).exists()
    assert "it has ended" in refused(tmp_path, 2, "E276").facts
    assert "no such folder" in refused(tmp_path / "nowhere", 2, "E276").facts


def test_a_killed_run_takes_no_requests(tmp_path: Path) -> None:
    run = open_requests(tmp_path, [], Clock()).__enter__()
    run.publish_limits(ScaleLimits("downpour", 2, 8))
    run._release()  # as the system does when a process ends
    assert (tmp_path / LIMITS_FILE).exists()
    refused(tmp_path, 2, "E276")
    with open_requests(tmp_path, [], Clock()):
        pass


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with open_requests(tmp_path, [], Clock()), pytest.raises(UsageError, match="E272: another run trains in"):
        open_requests(tmp_path, [], Clock()).__enter__()


def test_a_request_of_an_earlier_run_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / REQUEST_FILE).write_text('{"replicas": 9}')
    clock = Clock()
    with open_requests(tmp_path, [], clock) as run:
        clock.now += POLL_S
        assert run.take_request() is None


@pytest.mark.parametrize("text", ["", "{", '{"replicas": "many"}', '{"replicas": 1.5}', "[" * 5000])
def test_a_damaged_request_is_ignored_with_a_notice(tmp_path: Path, text: str) -> None:
    notices, clock = list[str](), Clock()
    with open_requests(tmp_path, notices, clock) as run:
        (tmp_path / REQUEST_FILE).write_text(text)
        (tmp_path / REQUEST_FILE).chmod(0o600)
        clock.now += POLL_S
        assert run.take_request() is None
        assert not (tmp_path / REQUEST_FILE).exists()
    assert len(notices) == 1
    assert "is ignored" in notices[0]


@pytest.mark.parametrize("kind", ["others may write", "a link", "a pipe"])
def test_a_request_that_others_may_have_written_is_ignored(tmp_path: Path, kind: str) -> None:
    notices, clock = list[str](), Clock()
    with open_requests(tmp_path, notices, clock) as run:
        path = tmp_path / REQUEST_FILE
        if kind == "a pipe":
            os.mkfifo(path, 0o600)
        elif kind == "a link":
            (tmp_path / "elsewhere").write_text('{"replicas": 3}')
            path.symlink_to(tmp_path / "elsewhere")
        else:
            path.write_text('{"replicas": 3}')
            path.chmod(0o666)
        clock.now += POLL_S
        assert run.take_request() is None
    assert len(notices) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with open_requests(tmp_path, [], Clock()) as run:
        run.publish_limits(ScaleLimits("downpour", 2, 8))
        (tmp_path / f"{REQUEST_FILE}.new").mkdir()
        assert REQUEST_FILE in refused(tmp_path, 3, "E275").facts
        (tmp_path / f"{REQUEST_FILE}.new").rmdir()
