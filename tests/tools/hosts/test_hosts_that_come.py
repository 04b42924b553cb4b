"""Machines that come back, or join, while a run over ssh goes on."""

import contextlib
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import cutset as cutset
from listening import Listening
from places import USER_MODELS
from ssh_hosts import AGENTS, command_line, needs_sshd, ssh_hosts, write_cluster

from cutset.errors import ProcessLost
from cutset.ps.methods.registry import parse_method
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.leases.scale_requests import request_replicas
from cutset.tools.train import run

pytestmark = [pytest.mark.slow, needs_sshd, pytest.mark.timeout(120)]


def config(out: Path, method: str, epochs: int) -> RunConfig:
    task = f"{USER_MODELS / 'good.py'}:task"
    return RunConfig(
        task=task, method=parse_method(method), replicas=2, shards=2, epochs=epochs, baseline=False, out=out
    )


def kill_agents(folder: Path) -> int:
    """Kill what serves launchers on the hosts of a folder; return how many there were."""
    agents = [int(name) for name in os.listdir("/proc") if name.isdecimal() and is_agent(int(name), folder)]
    for pid in agents:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(agents)


def is_agent(pid: int, folder: Path) -> bool:
    words = command_line(pid).split()
    if words[-1:] != ["cutset.runtime.hosts.agent"] or "ssh" in words[0]:
        return False
    return f"TMPDIR={folder / AGENTS}" in Path(f"/proc/{pid}/environ").read_text().split("\0")


def train_and_kill_agents(there: RunConfig, *, step: int) -> list[str]:
    """Train; at this step of replica 0 kill all agents, on which all roles are. Return the notices."""
    notes, killed = list[str](), 0

    def follow(at: int, loss: float) -> None:
        nonlocal killed
        if not killed and at >= step:
            killed = kill_agents(there.folder.parent)

    run(prepare(there), Listening(follow, on_notice=notes.append))
    assert killed == 1
    return notes


@pytest.mark.parametrize("method", ["sync", "downpour"])
def test_a_run_whose_only_machine_is_lost_goes_on_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    here = config(tmp_path / "here", method, 40)
    with ssh_hosts(tmp_path, 1, monkeypatch) as names:
        cluster = write_cluster(tmp_path / "cluster.toml", names)
        notes = train_and_kill_agents(replace(here, out=tmp_path / "there", on=f"ssh:{cluster}"), step=40)
    assert any(re.match("host lab1 is lost: .*no host is left; waiting 60 s at most", note) for note in notes), notes
    assert "host lab1 is there again" in notes
    if method == "sync":
        run(prepare(here))
        weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("here", "there")]
        assert weights[0] == weights[1]


@pytest.mark.parametrize(("host_wait", "words"), [(0.0, "no host is left"), (3.0, "none came back in 3 s")])
def test_a_machine_that_does_not_come_back_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host_wait: float, words: str
) -> None:
    with ssh_hosts(tmp_path, 1, monkeypatch) as names:
        cluster = write_cluster(tmp_path / "cluster.toml", names)
        there = replace(config(tmp_path / "there", "sync", 40), on=f"ssh:{cluster}", host_wait=host_wait)

        def follow(at: int, loss: float) -> None:
            if at >= 40:
                # nothing leads there any more
                cluster.write_text(cluster.read_text().replace("address", "# address"))
                kill_agents(tmp_path)

        with pytest.raises(ProcessLost, match=f"E608: host lab1 is lost: .*{words}") as caught:
            run(prepare(there), Listening(follow))
    assert caught.value.exit_code == 6
    if host_wait:
        assert "has no address" in caught.value.facts


def test_replicas_join_on_a_machine_that_was_added_to_the_cluster_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, asked = list[str](), False
    with ssh_hosts(tmp_path, 3, monkeypatch) as names:
        cluster = write_cluster(tmp_path / "cluster.toml", names[:2])
        there = replace(config(tmp_path / "there", "downpour", 100_000), on=f"ssh:{cluster}")

        def follow(at: int, loss: float) -> None:
            nonlocal asked
            if not asked and at >= 40:
                asked = True
                write_cluster(cluster, names)
                request_replicas(there.folder, 3)

        def note(words: str) -> None:
            notes.append(words)
            if words.startswith("replica 2 trains"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(prepare(there), Listening(follow, on_notice=note))
    assert notes.index("host lab3 has joined") < notes.index("replica 2 joins; replicas: 3")
