"""Real sshd for tests, as whoever runs them: on addresses of loopback, which ssh then knows as lab1, lab2, ..."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from free_ports import find_free_ports
from name_spaces import RATE

from cutset.tools.bench.cluster.emulated_cluster import EmulatedCluster

PORT, AGENTS = 2222, "agents"

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
needs_sshd = pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="sshd and ssh are not installed")

_SERVER = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PrintMotd no
"""
_CLIENT = """
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking yes
"""


@contextmanager
def ssh_hosts(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Run an sshd that stands for `count` hosts, each with an address of its own; yield their names for ssh.

    What they write goes to the folder AGENTS in `folder`.
    """
    (folder / AGENTS).mkdir()
    addresses = [f"127.0.0.{number}" for number in range(1, count + 1)]
    (port,) = find_free_ports(addresses=addresses)
    names = _prepare(folder, addresses, port, monkeypatch)
    with _sshd(folder, addresses, port, options=["-o", f"SetEnv=TMPDIR={folder / AGENTS}"]):
        yield names


@dataclass(frozen=True)
class SeparateHosts:
    """Hosts with a disk and a network card each; names: for ssh."""

    names: list[str]
    cluster: EmulatedCluster
    _servers: "list[subprocess.Popen[bytes]]"

    def processes(self, number: int) -> dict[int, str]:
        """What runs on a host beside sshd, with its command line, by process number."""
        return {pid: line for pid in self._pids(number) if (line := command_line(pid)) and "sshd" not in line}

    def _pids(self, number: int) -> list[int]:
        name = self.cluster.process_placement.hosts[number].name
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True).stdout
        return [pid for pid in map(int, pids.split()) if pid != self._servers[number].pid]

    def agents(self, number: int) -> list[int]:
        """The processes that serve launchers on a host."""
        return [
            pid for pid, line in self.processes(number).items() if line.split()[-1:] == ["cutset.runtime.hosts.agent"]
        ]

    def kill_all(self, number: int) -> None:
        """Kill all that runs on a host, as a loss of power does."""
        for pid in self._pids(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def files(self, number: int) -> list[str]:
        """What lies in /tmp of a host."""
        return os.listdir(f"/proc/{self._servers[number].pid}/root/tmp")

    def wipe(self, number: int) -> None:
        """Remove all of it."""
        for name in self.files(number):
            shutil.rmtree(f"/proc/{self._servers[number].pid}/root/tmp/{name}", ignore_errors=True)


def command_line(pid: int) -> str:
    """The words that a process was started with, "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@contextmanager
def separate_hosts(count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[SeparateHosts]:
    """Run an sshd in each of `count` name spaces for the network, with a name space for mounts and a /tmp of its own.

    What lies in /tmp here is on none of the hosts, nor the other way round.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp") as keys, ExitStack() as stack:
        cluster = stack.enter_context(EmulatedCluster(count, rate=RATE))
        hosts, folder = cluster.process_placement.hosts, Path(keys)
        names = _prepare(folder, [host.address for host in hosts], PORT, monkeypatch)
        servers = []
        for host in hosts:
            own_tmp = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /tmp && exec "$@"', "sh")
            prefix = ("ip", "netns", "exec", host.name, *own_tmp)
            servers.append(stack.enter_context(_sshd(folder, [host.address], PORT, prefix=prefix)))
        there = SeparateHosts(names, cluster, servers)
        try:
            yield there
        finally:
            for number in range(count):
                there.kill_all(number)  # behind a cable that is cut, sessions last for hours


def _prepare(folder: Path, addresses: Sequence[str], port: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write keys and configurations; return the names of the hosts."""
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    names = [f"lab{number}" for number in range(1, len(addresses) + 1)]
    _write_config(folder, names, addresses, port)
    monkeypatch.setenv("PATH", f"{_wrap_ssh(folder)}:{os.environ['PATH']}")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it to be there
    return names


@contextmanager
def _sshd(
    folder: Path, addresses: Sequence[str], port: int, *, prefix: Sequence[str] = (), options: Sequence[str] = ()
) -> "Iterator[subprocess.Popen[bytes]]":
    assert SSHD is not None
    listening = [word for address in addresses for word in ("-o", f"ListenAddress={address}:{port}")]
    command = [*prefix, SSHD, "-D", "-e", "-f", str(folder / "sshd_config"), *listening, *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        for _ in addresses:  # "Server listening on ..."
            line = server.stderr.readline()
            assert b"listening" in line, line
        yield server
    finally:
        server.terminate()
        server.communicate()


def _write_config(folder: Path, names: Sequence[str], addresses: Sequence[str], port: int) -> None:
    (folder / "sshd_config").write_text(_SERVER.format(folder=folder))
    key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"[{address}]:{port} {key}" for address in addresses))
    hosts = [f"Host {name}\nHostName {address}\nPort {port}\n" for name, address in zip(names, addresses, strict=True)]
    (folder / "ssh_config").write_text("".join(hosts) + "Host *\n" + _CLIENT.format(folder=folder))


def _wrap_ssh(folder: Path) -> Path:
    """A program ssh that reads this configuration, since the real one looks for it in the home of the user."""
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    program.chmod(0o755)
    return programs


def write_cluster(path: Path, machines: Sequence[str], *, memory: str = "1 GB", python: str = sys.executable) -> Path:
    """Write a cluster file with a machine for each name of ssh."""
    text = '[network]\nbandwidth = "1 Gbit/s"\nlatency = "0.2 ms"\n'
    for name in machines:
        text += f'[[machine]]\nname = "{name}"\nflops = "50 GFLOP/s"\nmemory = "{memory}"\n'
        text += f'address = "{name}"\npython = "{python}"\n'
    path.write_text(text)
    return path
