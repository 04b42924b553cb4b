"""While a run trains over hosts: whoever is not of it gets no answer at any port, and finds no key on any host."""

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from host_faults import train_and_lose
from name_spaces import needs_namespaces
from places import USER_MODELS
from ssh_hosts import PORT, SeparateHosts, needs_sshd, separate_hosts, write_cluster
from zmq.utils import z85

from cutset.ps.methods.registry import parse_method
from cutset.tools.config.run_config import RunConfig

pytestmark = [pytest.mark.slow, needs_sshd, needs_namespaces, pytest.mark.timeout(120)]

GREETING_BYTES = 64  # of ZMTP, with the mechanism in it
ANSWER_S = 0.5


def listening(space: str) -> Iterator[tuple[str, int]]:
    """Addresses and ports in a name space at which somebody listens, but sshd."""
    listed = subprocess.run(
        ["ip", "netns", "exec", space, "ss", "-Hltn"], capture_output=True, text=True, check=True
    ).stdout
    for line in listed.splitlines():
        address, _, port = line.split()[3].rpartition(":")
        if int(port) != PORT:
            yield address, int(port)


def answer_to_garbage(address: str, port: int) -> bytes:
    """What comes before and after a line of no protocol."""
    with socket.create_connection((address, port), timeout=ANSWER_S) as foreign, contextlib.suppress(OSError):
        foreign.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(200))
        received = b""
        while part := foreign.recv(4096):
            received += part
        return received
    return b""


def is_answered(address: str, port: int, *, server: bytes | None) -> bool:
    """Whether a socket of ZeroMQ without encryption, or with a key of its own, hears anything."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as foreign:
        foreign.linger = 0
        if server is not None:
            foreign.curve_publickey, foreign.curve_secretkey = zmq.curve_keypair()
            foreign.curve_serverkey = server
        foreign.connect(f"tcp://{address}:{port}")
        for _ in range(3):
            foreign.send_multipart([b"hello", b"there"])
        return bool(foreign.poll(int(ANSWER_S * 1000)))


def keys_in(text: bytes) -> list[bytes]:
    """Words that are keys of CURVE as they are written: 40 characters that stand for 32 bytes."""
    found = []
    words = re.split(rb"[\0\s,;\"'|]", text)
    for word in (*words, *(re.sub(rb"^[A-Za-z_]\w*=", b"", word) for word in words if len(word) > 40)):
        if len(word) == 40 and not re.fullmatch(rb"[\w./-]+", word):
            with contextlib.suppress(ValueError, KeyError):
                z85.decode(word)
                found.append(word)
    return found


def test_a_foreign_peer_gets_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    someone = zmq.curve_keypair()[0]
    assert keys_in(b"A=" + someone) == [someone]

    def look_around(hosts: SeparateHosts, number: int) -> None:
        for number, host in enumerate(hosts.cluster.process_placement.hosts):
            for address, port in listening(host.name):
                assert address == host.address
                tried.append((address, port))
                received = answer_to_garbage(address, port)
                assert len(received) <= GREETING_BYTES
                assert b"GET" not in received
                assert not is_answered(address, port, server=None)
                assert not is_answered(address, port, server=someone)
            for pid in hosts.processes(number):
                with contextlib.suppress(FileNotFoundError):
                    for name in ("cmdline", "environ"):
                        assert keys_in(Path(f"/proc/{pid}/{name}").read_bytes()) == []

    with separate_hosts(3, monkeypatch) as hosts:
        config = RunConfig(
            task=f"{USER_MODELS / 'good.py'}:task",
            method=parse_method("downpour"),
            replicas=2,
            shards=3,
            epochs=900,
            baseline=False,
            out=tmp_path / "run",
            on=f"ssh:{write_cluster(tmp_path / 'cluster.toml', hosts.names)}",
        )
        followed = train_and_lose(config, hosts, look_around, 0, step=20)
    assert followed.error is None
    assert followed.result["restarts"] == []
    assert len(tried) >= 5  # each role's
