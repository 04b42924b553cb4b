"""The probe, on this machine: quick, so that figures are rough, but real."""

import io
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from cutset.errors import UsageError
from cutset.partition.cluster.cluster_file import load, read, to_toml
from cutset.partition.cluster.machines import Cluster, Machine
from cutset.runtime.hosts.versions import read_memory
from cutset.tools.commands.probe_command import probe as command
from cutset.tools.probe import measure_machine as probe_module
from cutset.tools.probe.measure_machine import ProbeResult, probe, probe_hosts
from cutset.tools.probe.probe_models import CHAIN_LENGTH, REPEATED, SUBJECTS, make_chains, make_gallery, name_repetition
from cutset.tools.report.probe_report import print_probed


@pytest.fixture(scope="module")
def probed() -> ProbeResult:
    return probe(2, name="desk", brief=True)


@pytest.mark.slow
def test_every_constant_is_measured(probed):
    machine = probed.cluster.machines[0]
    numbers = [probed.cluster.bandwidth, probed.cluster.latency_s, probed.copy]
    numbers += [value for name, value in vars(machine).items() if isinstance(value, float)]
    numbers += [value for rate in machine.rates.values() for value in vars(rate).values()]
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert machine.flops_per_s > 1e8
    assert machine.memory_bandwidth > 1e7
    assert 0 < machine.operator_s < 0.1
    assert 0 < machine.message_s < 0.1
    assert set(machine.rates) == {s.kind for s in SUBJECTS} - {"elementwise"} | {"random"}


@pytest.mark.run
def test_large_operators_take_longer_than_small_ones(probed):
    seconds = {(s.kind, s.size): s.forward_s + s.backward_s for s in probed.samples}
    for kind in {s.kind for s in SUBJECTS} - {"view"}:
        assert seconds[kind, "large"] > seconds[kind, "tiny"]


@pytest.mark.run
def test_the_cluster_is_what_was_asked_for_and_a_file_can_hold_it(probed):
    assert [m.name for m in probed.cluster.machines] == ["desk 0", "desk 1"]
    assert probed.cluster.machines[0].memory_bytes <= read_memory() // 2 * 1.001
    assert read(to_toml(probed.cluster)) == probed.cluster


@pytest.mark.run
def test_what_was_measured_is_said(probed):
    out = io.StringIO()
    print_probed(probed, console=Console(file=out, width=200))
    for text in ("each of 2 workers", "matrix products", "FLOP/s", "a message, at either end", "loopback"):
        assert text in out.getvalue()
    assert json.loads(json.dumps(probed.to_dict()))["cluster"]["machines"][1]["name"] == "desk 1"


@pytest.mark.run
def test_a_busy_machine_is_told_of(probed):
    for busy, said in ((5.0 * probed.cores, True), (0.0, False)):
        out = io.StringIO()
        print_probed(replace(probed, busy=busy), console=Console(file=out, width=200))
        assert ("the machine was busy" in out.getvalue()) == said


@pytest.mark.run
def test_the_command_writes_the_file_and_its_json(probed, tmp_path, monkeypatch):
    monkeypatch.setattr(probe_module, "probe", lambda machines, name: probed)
    path = tmp_path / "cluster.toml"
    done = CliRunner().invoke(command, ["-o", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["workers"] == 2
    assert load(path) == probed.cluster
    assert "loopback" in path.read_text()


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(probe_module, "probe", lambda machines, name: pytest.fail("measured"))
    done = CliRunner().invoke(command, ["-o", str(tmp_path / "none" / "cluster.toml")])
    assert isinstance(done.exception, UsageError)
    assert "there is no folder" in done.exception.facts


def test_no_machines_are_refused_before_anything_is_measured():
    with pytest.raises(UsageError, match="E201"):
        probe(0)


@pytest.mark.slow
def test_every_subject_is_one_operator_of_its_class():
    _, groups = make_gallery()
    subjects = {name: ops for group in groups for name, ops in group.items()}
    assert {s.name for s in SUBJECTS} | {name_repetition(n) for n in REPEATED} == set(subjects)
    assert all(len(subjects[s.name]) == 1 for s in SUBJECTS)
    assert [len(subjects[name_repetition(n)]) for n in REPEATED] == list(REPEATED)


@pytest.mark.slow
def test_chains_go_to_and_fro_or_both_ways_at_once():
    small, *large, mixed = make_chains()
    for chain in (small, mixed):
        left, right = chain.parts
        assert (len(left.segments), len(right.segments), len(chain.alone.segments)) == (4, 3, 1)
        assert len(left.arrivals) == len(right.arrivals) == 3
    for chain in large:
        left, right = chain.parts
        assert (len(left.arrivals), len(right.arrivals), len(chain.alone.segments)) == (7, 6, 1)
    assert len(mixed.whole.ops) - len(small.whole.ops) == 4 * CHAIN_LENGTH


# A host of two machines, and one of another speed beside it; "a" and "b" have a cable of their own.
STATED = """
[network]
bandwidth = "1 Gbit/s"
latency = "1 ms"
[network.inside]
bandwidth = "10 Gbit/s"
latency = "10 us"
[[machine]]
name = "a"
host = "left"
flops = "1 GFLOP/s"
memory = "1 GB"
address = "user@a"
[[machine]]
name = "b"
flops = "1 GFLOP/s"
memory = "1 GB"
address = "user@b"
[[machine]]
name = "c"
host = "left"
flops = "1 GFLOP/s"
memory = "1 GB"
address = "user@c"
[[link]]
from = "a"
to = "b"
bandwidth = "40 Gbit/s"
latency = "5 us"
"""


def test_machines_of_one_host_stay_so(monkeypatch):
    asked = []

    def measure(workers, name, hosts, *, cores, memory_bytes, effort):
        asked.append(tuple(host.name for host in hosts))
        bandwidth = {("a", "b"): 1e9, ("b", "c"): 5e8, ("c", "b"): 9e8, ("a", "c"): 8e9}[asked[-1]]
        return SimpleNamespace(cluster=Cluster((Machine(name, flops_per_s=7e9),), bandwidth, 1e-4))

    monkeypatch.setattr(probe_module, "_measure", measure)
    stated = read(STATED)
    hosts = [SimpleNamespace(name=name, cores=1, ready=SimpleNamespace(memory_bytes=1 << 30)) for name in "abc"]
    found = probe_hosts(hosts, stated)
    assert asked == [("a", "b"), ("b", "c"), ("c", "b"), ("a", "c")]
    assert [(m.name, m.address, m.flops_per_s) for m in found.machines] == [(n, f"user@{n}", 7e9) for n in "abc"]
    assert found.cards == stated.cards
    assert [found.bandwidth_out(number) for number in range(3)] == [1e9, 5e8, 1e9]
    assert [found.bandwidth_between(*pair) for pair in ((0, 2), (2, 0), (0, 1))] == [8e9, 8e9, 5e9]
    again = read(to_toml(found))
    assert sorted(again.links, key=str) == sorted(found.links, key=str)
    assert replace(again, links=()) == replace(found, links=())
