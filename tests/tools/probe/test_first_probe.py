"""A machine is measured once, where a plan needs it."""

import os
from dataclasses import replace

import pytest

from cutset.partition.cluster.machines import ProcessMemory, SharedCores, uniform_cluster
from cutset.tools.measured.saved_probe import make_key, read_saved_probe
from cutset.tools.probe import first_probe, measure_machine
from cutset.tools.probe.first_probe import find_machines, probe_once
from cutset.tools.probe.measure_machine import ProbeResult
from cutset.tools.probe.task_operators import TaskRatios
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_request import DESKTOP, HERE, PlanRequest


@pytest.fixture
def probes(monkeypatch, tmp_path) -> list[int]:
    """The numbers of processes that a probe, which takes no time, was made for."""
    made = list[int]()

    def probe(workers: int, *, effort: float) -> ProbeResult:
        made.append(workers)
        cluster = replace(uniform_cluster(workers), shared=(SharedCores(tuple(range(workers)), 2, 1.5),))
        threads = make_key(workers).threads
        return ProbeResult(cluster, workers, make_key(workers).cores, threads, (), (), 1e9, busy(), 2.0)

    def busy() -> float:
        return os.getloadavg()[0]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measure_machine, "probe", probe)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return made


def test_the_first_plan_measures_and_says_so_and_the_next_does_not(probes):
    said = list[str]()
    saved = probe_once(2, said.append)
    assert probes == [2]
    assert "measuring this machine, once" in said[0]
    assert "measured in 2 s" in said[1]
    assert probe_once(2, said.append) == saved
    assert (probes, len(said)) == ([2], 2)
    assert read_saved_probe(make_key(2)) == (saved, "")


def test_a_machine_that_was_busy_is_measured_again_once_it_is_idle(probes, monkeypatch):
    said = list[str]()
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0, 0.0, 0.0))
    probe_once(2, said.append)
    assert "while 100.0 other processes ran" in said[1]
    probe_once(2, said.append)
    assert probes == [2]
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    probe_once(2, said.append)
    probe_once(2, said.append)
    assert probes == [2, 2]
    assert "again, since it was busy" in said[2]


def test_a_plan_has_the_machine_and_the_measured_operators(probes, monkeypatch):
    capture, spec = capture_task(TaskSpec("cutset.models:digits")), TaskSpec("cutset.models:digits")
    measured = list[str]()

    def measure_operators(capture, spec, machine, known, *, threads, processes, cores):
        measured.append(spec.model)
        return TaskRatios({"an operator": (2.0, 1.0)}, ProcessMemory(7, 1.5), contention=1.75, speedup=1.25)

    monkeypatch.setattr("cutset.tools.probe.task_operators.measure_operators", measure_operators)
    monkeypatch.setattr("cutset.tools.probe.task_operators.has_unknown", lambda capture, known: not known)
    for _ in range(2):
        cluster = find_machines(capture, spec, PlanRequest(machines=2, cluster=HERE), lambda words: None)
        assert cluster is not None
        assert cluster.machines[0].ratios == {"an operator": (2.0, 1.0)}
        assert (cluster.machines[0].process_bytes, cluster.machines[0].memory_ratio) == (7, 1.5)
        assert (cluster.shared[0].contention, cluster.shared[0].whole_speedup) == (1.75, 1.25)
    assert measured == [spec.model]


def test_the_contention_of_a_task_does_not_hang_on_which_plan_came_first(probes, monkeypatch):
    capture, spec = capture_task(TaskSpec("cutset.models:digits")), TaskSpec("cutset.models:digits")
    monkeypatch.setattr("cutset.tools.measured.saved_probe.read_cores", lambda: 2)
    monkeypatch.setattr(
        "cutset.tools.probe.task_operators.measure_operators",
        lambda *arguments, processes, **more: TaskRatios({}, ProcessMemory(7, 1.5), contention=1.0 + processes / 8),
    )
    monkeypatch.setattr("cutset.tools.probe.task_operators.has_unknown", lambda capture, known: False)
    for count in (3, 2, 3):  # three take turns, two do not
        cluster = find_machines(capture, spec, PlanRequest(machines=count, cluster=HERE), lambda words: None)
        assert cluster is not None
        assert cluster.shared[0].contention == 1.0 + count / 8


def test_what_is_measured_again_is_for_one_plan_alone(probes, monkeypatch):
    capture, spec = capture_task(TaskSpec("cutset.models:digits")), TaskSpec("cutset.models:digits")
    kept = probe_once(2, lambda words: None)
    monkeypatch.setattr(
        "cutset.tools.probe.task_operators.measure_operators",
        lambda *arguments, **more: TaskRatios({"an operator": (2.0, 1.0)}, ProcessMemory(7, 1.5), contention=1.75),
    )
    for _ in range(2):
        cluster = find_machines(capture, spec, PlanRequest(machines=2, cluster=HERE), pytest.fail, again=True)
        assert cluster is not None
        assert cluster.machines[0].ratios == {"an operator": (2.0, 1.0)}
    assert probes == [2, 2, 2]
    assert read_saved_probe(make_key(2)) == (kept, "")


def test_nothing_is_measured_for_other_machines_or_for_one(probes):
    capture, spec = capture_task(TaskSpec("cutset.models:digits")), TaskSpec("cutset.models:digits")
    for request in (PlanRequest(machines=2, cluster=DESKTOP), PlanRequest(machines=1, cluster=HERE)):
        assert find_machines(capture, spec, request, pytest.fail) is None
    assert probes == []
    assert first_probe.HERE == "here"
