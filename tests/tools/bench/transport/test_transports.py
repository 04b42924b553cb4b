"""What transports are compared with: it is to take no longer than it must, or ours would look better than they are."""

import socket
from threading import Thread
from typing import Any

import pytest
import torch

from cutset.tools.bench.transport.transports import _Memcpy, _RawSocket

SIZE = 1 << 20


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sizes of the tensors that are made from now on."""
    sizes: list[Any] = []
    for name in ("zeros", "empty", "zeros_like", "empty_like"):
        make = getattr(torch, name)

        def note(*args: Any, make: Any = make, **kwargs: Any) -> torch.Tensor:
            sizes.append(args)
            return make(*args, **kwargs)

        monkeypatch.setattr(torch, name, note)
    return sizes


def test_a_raw_socket_receives_into_the_same_memory_every_time(made: list[Any]) -> None:
    ends = [_RawSocket(end) for end in _connect()]
    sent = torch.arange(SIZE, dtype=torch.int32).view(torch.uint8)
    for _ in range(3):
        sending = Thread(target=ends[0].send, args=(sent,))
        sending.start()
        assert torch.equal(ends[1].receive(sent.numel()), sent)
        sending.join()
    assert len(made) == 1
    for end in ends:
        end.close()


def test_memory_is_copied_to_the_same_place_every_time(made: list[Any]) -> None:
    transport, sent = _Memcpy(), torch.arange(SIZE, dtype=torch.uint8)
    for _ in range(3):
        transport.send(sent)
    assert torch.equal(transport.receive(SIZE), sent)
    assert len(made) == 1


def _connect() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]
