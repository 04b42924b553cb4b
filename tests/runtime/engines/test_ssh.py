"""Hosts by ssh: what is run, and, where sshd is installed, that roles work together on several hosts of a real one."""

import shlex
import sys
from pathlib import Path

import pytest
from ssh_hosts import needs_sshd, ssh_hosts

from cutset.errors import UsageError
from cutset.partition.cluster.machines import Machine
from cutset.runtime.engines.reachability import find_closed_links, launcher_address
from cutset.runtime.engines.ssh import SshEngine, ssh_command
from cutset.runtime.hosts.remote_host import RemoteHost


def test_the_address_is_no_option_and_the_interpreter_one_word() -> None:
    command = ssh_command(Machine("desk", address="me@lab1", python="/opt/my tools/python"))
    assert command[0] == "ssh"
    assert command[-3:-1] == ["--", "me@lab1"]
    assert shlex.split(command[-1])[0] == "/opt/my tools/python"
    assert "BatchMode=yes" in command


def test_the_interpreter_is_by_default_the_one_here() -> None:
    assert shlex.split(ssh_command(Machine("desk", address="lab1"))[-1])[0] == sys.executable


@needs_sshd
def test_hosts_open_together_and_each_that_does_not_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ssh_hosts(tmp_path, 2, monkeypatch) as (one, two):
        machines = [
            Machine("desk", address=one, python=sys.executable),
            Machine("shelf", address=two, python="/no/python"),
            Machine("attic", address="nobody-there"),
        ]
        with SshEngine("ssh", lambda: machines).open() as opened:
            desk, shelf, attic = opened["desk"], opened["shelf"], opened["attic"]
            assert isinstance(desk, RemoteHost)
            assert (desk.address, desk.ready.launcher) == ("127.0.0.1", "127.0.0.1")
            assert abs(desk.clock_ahead_s) < 30
            assert isinstance(shelf, UsageError)
            assert shelf.code == "E290"
            assert "/no/python" in shelf.facts
            assert isinstance(attic, UsageError)
            assert "nobody-there" in attic.facts


@needs_sshd
def test_roles_on_all_hosts_hear_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        ssh_hosts(tmp_path, 3, monkeypatch) as names,
        SshEngine("ssh", lambda: [Machine(n, address=n) for n in names]).open() as opened,
    ):
        hosts = [host for host in opened.values() if isinstance(host, RemoteHost)]
        assert [host.address for host in hosts] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        assert launcher_address(hosts).startswith("127.0.0.")
        assert find_closed_links(hosts) == []
