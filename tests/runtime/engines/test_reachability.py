"""The ways between hosts: every one that is closed is named, and no other."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from busy import stretch
from name_spaces import RATE, needs_namespaces

from cutset.runtime.engines.agent_command import AgentCommand
from cutset.runtime.engines.reachability import find_closed_links
from cutset.runtime.hosts.remote_host import AGENT, RemoteHost
from cutset.tools.bench.cluster.emulated_cluster import EmulatedCluster

Hosts = dict[str, RemoteHost]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Three agents in network name spaces."""
    with EmulatedCluster(3, rate=RATE) as cluster, ExitStack() as stack:
        placement = cluster.process_placement
        opened = {}
        for number, local in enumerate(placement.hosts):
            command = AgentCommand(f"lab{number}", ("ip", "netns", "exec", local.name, sys.executable, *AGENT))
            host = RemoteHost(f"lab{number}", command, launcher=placement.address)
            opened[local.name] = stack.enter_context(host)
        yield opened


def forbid(space: str, address: str) -> None:
    """Have a name space send nothing to an address."""
    subprocess.run(["ip", "-n", space, "route", "add", "blackhole", f"{address}/32"], check=True)


@needs_namespaces
def test_a_closed_way_is_named_by_both_of_its_ends(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutset.runtime.engines.reachability.GREETING_S", stretch(1.0))
    (first, lab0), (_, lab1), _ = hosts.items()
    assert find_closed_links(list(hosts.values())) == []
    forbid(first, lab1.address)  # TCP needs both directions
    errors = find_closed_links(list(hosts.values()))
    assert sorted(error.facts.partition(",")[0] for error in errors) == [
        "nothing that lab0 sends arrives at lab1",
        "nothing that lab1 sends arrives at lab0",
    ]
    assert {error.code for error in errors} == {"E518"}
    assert any(lab1.address in error.facts for error in errors)
    assert any(lab0.address in error.facts for error in errors)


@pytest.mark.slow
@needs_namespaces
def test_a_host_that_cannot_reach_the_launcher_is_named(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutset.runtime.engines.reachability.START_S", 6.0)
    (first, lab0), *_ = hosts.items()
    forbid(first, lab0.ready.launcher)
    forbid(list(hosts)[2], list(hosts.values())[1].address)
    to_launcher, *others = find_closed_links(list(hosts.values()))
    assert to_launcher.facts.startswith("nothing that lab0 sends arrives at this machine, ")
    assert lab0.ready.launcher in to_launcher.facts
    assert sorted(error.facts.partition(",")[0] for error in others) == [
        "nothing that lab1 sends arrives at lab2",
        "nothing that lab2 sends arrives at lab1",
    ]
