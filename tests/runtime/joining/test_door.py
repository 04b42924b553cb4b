"""A door lets in those whose keys are expected, each once; what passes there is whole and in order."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from busy import stretch

from cutset.errors import NetworkError, UsageError
from cutset.runtime.engines.joined_hosts import open_joined
from cutset.runtime.hosts.host import Role
from cutset.runtime.hosts.remote_host import RemoteHost
from cutset.runtime.joining.door import Door
from cutset.runtime.joining.join import Pass, join
from cutset.runtime.joining.join_key import make_join_key
from cutset.runtime.launcher.launcher import Launcher

WAIT_S = 30.0
KEY = make_join_key("127.0.0.1", 0)


@contextmanager
def joined(door: Door, number: int) -> Iterator[None]:
    """A machine that joins beside this one, and has left in the end."""
    thread = threading.Thread(target=join, args=(door.endpoint, KEY.make_pass(number)))
    thread.start()
    try:
        yield
    finally:
        thread.join(stretch(WAIT_S))
        assert not thread.is_alive()


@pytest.fixture
def door() -> Iterator[Door]:
    with Door(KEY.door_keys(2), "127.0.0.1") as door:
        yield door


@pytest.mark.run
def test_roles_on_a_machine_that_joins(door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "support"))
    source = tmp_path / "source"
    source.write_bytes(os.urandom(5 << 20))  # more than may be on the way at once
    with joined(door, 0), RemoteHost("lab", door.await_stream("0", wait_s=WAIT_S), launcher="127.0.0.1") as host:
        role = Role("reader", "role_examples:digests", {"folder": host.folder, "paths": ["a"]}, files={"a": source})
        with Launcher([role], job="test", hosts=[host]) as launcher:
            assert len(launcher.run()[0]["a"]) == 64
        host.fetch_file("a", tmp_path / "back", timeout_s=WAIT_S)
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_a_key_that_is_not_expected_gets_no_answer(door: Door) -> None:
    other = make_join_key("127.0.0.1", 0)
    with pytest.raises(NetworkError, match=r"E520: the launcher at .* refuses this machine: it does not expect"):
        join(door.endpoint, Pass(KEY.make_pass(0).server, *list(vars(other.make_pass(0)).values())[1:]), wait_s=WAIT_S)
    assert re.fullmatch("[1-9][0-9]* came with a key that is not expected", door.refusals)
    with pytest.raises(UsageError, match=r"has not joined at .*; [0-9]+ came with a key that is not expected"):
        door.await_stream("0", wait_s=0.1)
    notices = list[str]()
    with open_joined(door, {}, launcher="127.0.0.1", notices=notices):
        pass
    (notice,) = notices
    assert notice.startswith(f"refused at {door.endpoint}: ")
    assert notice.endswith(" came with a key that is not expected")


def test_who_speaks_no_curve_gets_no_answer(door: Door) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as foreign:
        foreign.linger = 0
        foreign.connect(door.endpoint)
        foreign.send_multipart([b"join", b"", b""])
        assert not foreign.poll(500)


def test_a_key_serves_once(door: Door) -> None:
    with joined(door, 0):
        stream = door.await_stream("0", wait_s=WAIT_S)
        assert door.refusals == ""
        with pytest.raises(NetworkError, match="its key has been used already"):
            join(door.endpoint, KEY.make_pass(0), wait_s=WAIT_S)
        assert door.refusals == "1 came with a key that was used"
        stream.hang_up()


def test_where_nobody_listens_that_is_said_in_time() -> None:
    with pytest.raises(NetworkError, match=r"no launcher answers at tcp://127.0.0.1:9 in 0.1 s"):
        join("tcp://127.0.0.1:9", KEY.make_pass(0), wait_s=0.1)


def test_a_port_that_is_taken_is_named(door: Door) -> None:
    port = int(door.endpoint.rpartition(":")[2])
    with pytest.raises(NetworkError, match=f"E512: nobody can join at port {port} of 127.0.0.1"):
        Door(KEY.door_keys(1), "127.0.0.1", port)
