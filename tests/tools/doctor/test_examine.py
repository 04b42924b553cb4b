"""`cutset doctor`: the machines of a file as they are, and everything that is wrong with them at once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import NETWORK, USAGE, Cutset
from command_line import cutset as cutset
from places import USER_MODELS
from ssh_hosts import needs_sshd, ssh_hosts, write_cluster

from cutset.errors import BadInput, UsageError
from cutset.runtime.engines.ssh import SshEngine
from cutset.runtime.hosts import remote_host
from cutset.tools.doctor import examine
from cutset.tools.hosts.engine import make_engine, read_machines


@pytest.mark.parametrize("engine", ["ssh", "ssh:", "telnet:cluster.toml", "", "cluster.toml"])
def test_an_unknown_engine_is_refused(engine: str) -> None:
    with pytest.raises(UsageError, match="names no engine") as caught:
        make_engine(engine)
    assert caught.value.code == "E297"


def test_a_machine_without_an_address_is_named(tmp_path: Path) -> None:
    path = write_cluster(tmp_path / "cluster.toml", ["lab1"])
    path.write_text(path.read_text() + '[[machine]]\nname = "desk"\nflops = "1 GFLOP/s"\nmemory = "1 GB"\n')
    with pytest.raises(UsageError, match="machine 'desk' has no address"):
        read_machines(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing\.toml"):
        read_machines(tmp_path / "nothing.toml")


@pytest.mark.slow
@needs_sshd
def test_machines_that_are_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutset: Cutset) -> None:
    with ssh_hosts(tmp_path, 2, monkeypatch) as names:
        outcome = cutset("doctor", "--on", f"ssh:{write_cluster(tmp_path / 'cluster.toml', names)}")
    assert outcome.code == 0
    assert outcome.out.endswith("ready: 2 machines, and every way between them\n")
    assert "127.0.0.2" in outcome.out


@needs_sshd
def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutset: Cutset) -> None:
    versions = remote_host.read_versions
    monkeypatch.setattr(remote_host, "read_versions", lambda: versions() | {"torch": "9.9"})
    with ssh_hosts(tmp_path, 1, monkeypatch) as names:
        path = write_cluster(tmp_path / "cluster.toml", [*names, "nobody-there"], memory="900 TB")
        outcome = cutset("doctor", "--on", f"ssh:{path}", "--json")
        monkeypatch.setattr(remote_host, "read_versions", versions)
        monkeypatch.setattr(examine, "MAX_CLOCK_AHEAD_S", -1.0)
        machine = replace(read_machines(path)[0], memory_bytes=1 << 60)
        found = examine.examine(SshEngine("ssh:", lambda: [machine]))
    assert outcome.code == USAGE
    first = json.loads(outcome.out)
    assert [failure["code"] for failure in first["failures"]] == ["E291", "E290"]
    assert "instead of 9.9" in first["failures"][0]["facts"]
    assert not first["ready"]
    assert [error.code for error in found.failures] == ["E298", "E298"]
    memory, clock = (error.facts for error in found.failures)
    assert "host lab1 has " in memory
    assert "clock of host lab1" in clock


@pytest.mark.slow
@needs_sshd
def test_a_task_is_tried_on_each_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutset: Cutset) -> None:
    (tmp_path / "task.py").write_text("import there_is_no_such_module\n")
    with ssh_hosts(tmp_path, 2, monkeypatch) as names:
        engine = f"ssh:{write_cluster(tmp_path / 'cluster.toml', names)}"
        wrong = cutset("doctor", f"{tmp_path / 'task.py'}:task", "--on", engine, "--json", "--ports", "42300-42320")
        good = cutset("doctor", f"{USER_MODELS / 'good.py'}:task", "--on", engine)
        narrow = cutset("doctor", "--on", engine, "--json", "--ports", "42321-42323", "--roles", "4")
    assert narrow.code == NETWORK
    (failure,) = json.loads(narrow.out)["failures"]
    assert failure["code"] == "E512"
    assert "every port of 42321-42323 is in use" in failure["facts"]
    assert wrong.code == USAGE
    failures = [failure["facts"] for failure in json.loads(wrong.out)["failures"]]
    assert [facts.partition(":")[0] for facts in failures] == ["on host lab1", "on host lab2"]
    assert all("there_is_no_such_module" in facts for facts in failures)
    assert good.code == 0, good.out + good.err
