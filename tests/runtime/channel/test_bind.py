"""Where a role listens, and what is said where it cannot."""

import errno
from collections.abc import Iterator

import pytest
import zmq

from cutset.errors import NetworkError
from cutset.runtime.channel.bind import explain_failure, listen


@pytest.fixture
def inbox() -> Iterator["zmq.Socket[bytes]"]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        yield router


def test_it_takes_any_free_port(inbox: "zmq.Socket[bytes]") -> None:
    endpoint = listen(inbox, "a", "127.0.0.1", encrypted=True)
    assert int(endpoint.removeprefix("tcp://127.0.0.1:")) > 0


@pytest.mark.parametrize(
    ("host", "encrypted", "said"),
    [
        ("*", True, "every interface"),
        ("203.0.113.9", True, "it is no address of this machine"),
        ("no-such-host.invalid", True, "it is no name that is known here"),
        ("203.0.113.9", False, "without encryption"),
    ],
)
def test_what_will_not_do_is_named(inbox: "zmq.Socket[bytes]", host: str, encrypted: bool, said: str) -> None:
    with pytest.raises(NetworkError, match=said) as caught:
        listen(inbox, "worker-0.1", host, encrypted=encrypted)
    assert caught.value.code == "E512"
    assert host in caught.value.facts
    assert "worker-0.1" in caught.value.facts
    assert "127.0.0.1" in caught.value.fix


def test_ports_that_are_all_in_use_are_said_to_be() -> None:
    assert explain_failure("127.0.0.1", zmq.ZMQError(errno.EADDRINUSE)) == "every port there is in use"
