"""`cutset bench cluster`: what it is asked, how fast an emulated machine is, and what comes out."""

import json
import os
import shutil
import time
from functools import cache

import pytest
from click.testing import CliRunner
from name_spaces import needs_namespaces

from cutset.errors import UsageError
from cutset.partition.cluster.machines import Cluster, Machine, SharedCores, uniform_cluster
from cutset.partition.dataflow.simulator import SEND
from cutset.partition.planner.planner import find_plan
from cutset.runtime.worker.program import programs
from cutset.tools.bench.cluster.link import LinkTimes
from cutset.tools.bench.cluster.lockstep_vs_pipelined import (
    EMULATED,
    ClusterExperiment,
    ClusterResult,
    Variant,
    VariantResult,
    compute_paces,
    count_step_bytes,
    make_cluster,
    plan_variant,
    plan_variants,
)
from cutset.tools.bench.cluster.report import describe_conditions, render_cluster_page, tabulate
from cutset.tools.bench.commands.cluster import cluster_command, read_counts, read_flops, read_rate
from cutset.tools.probe.measure_machine import ProbeResult
from cutset.tools.probe.measure_step import WARM_UP, measure_programs
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec

SMALL = TaskSpec("cutset.tools.bench.cluster.recurrent_net:recurrent(layers=2,width=8,length=2,batch=4)")
LINK = LinkTimes(119e6, ((1024, 2e-4), (1 << 20, 9e-3)), 5e-5, 4e-4)


def experiment(**given: float) -> ClusterExperiment:
    return ClusterExperiment(SMALL, 2, 125e6, **{"flops": 1e8, "micro_batches": (2,)} | given)  # type: ignore[arg-type]


@cache
def ways() -> tuple[Cluster, list[Variant], dict[int, float]]:
    cluster = make_cluster(experiment(), 1e8, LINK, 119e6)
    return cluster, *plan_variants(experiment(), cluster, lambda line: None)


def make_result(ratio: float, gain: float) -> ClusterResult:
    """Cut steps that take `ratio` times less than predicted, with micro-batches `gain` times less than in lock-step."""
    cluster, planned_ways, candidates = ways()
    lock_step = planned_ways[1].simulation.step_s / ratio
    seconds = [way.simulation.step_s / ratio for way in planned_ways[:-1]] + [lock_step / gain]
    rows = tuple(VariantResult(way, (s, s), 0.1 * s, None) for way, s in zip(planned_ways, seconds, strict=True))
    return ClusterResult(experiment(), 1e8, LINK, cluster, 2, candidates, rows)


def test_machines_with_cores_of_their_own_send_by_the_emulated_network(monkeypatch: pytest.MonkeyPatch) -> None:
    copying = Cluster(uniform_cluster(2).machines, 1e10, 1e-6, shared=(SharedCores((0, 1), 2, 1.25, 1e10),))
    probed = ProbeResult(copying, 2, 2, 1, (), (), 1e9, 0.0, 1.0)
    monkeypatch.setattr("cutset.tools.probe.measure_machine.probe", lambda workers: probed)
    cluster = make_cluster(experiment(), None, LINK, 119e6)
    assert cluster.shared == (SharedCores((0, 1), 2, 1.25),)
    assert (cluster.copies_between(0, 1), cluster.bandwidth_between(0, 1)) == (None, 119e6)


def test_options_are_read() -> None:
    assert read_rate("1gbit") == 125e6
    assert (read_flops("auto"), read_flops("off"), read_flops("16 GFLOP/s")) == (0.0, None, 16e9)
    assert read_counts("8, 2,2") == (2, 8)


@pytest.mark.parametrize(
    ("read", "text", "code"),
    [
        (read_rate, "1 parsec", "E247"),
        (read_flops, "quick", "E248"),
        (read_counts, "1,2", "E249"),
        (read_counts, "", "E249"),
    ],
)
def test_wrong_options_are_named(read, text: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.code == code
    assert text in caught.value.facts


def test_without_root_the_command_says_so_and_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    done = CliRunner().invoke(cluster_command, [])
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code == 2


def test_the_planned_links_are_those_asked_for_with_the_latency_that_was_measured() -> None:
    cluster = make_cluster(experiment(), 1e8, LINK, 119e6)
    assert (len(cluster), cluster.bandwidth) == (2, 119e6)
    assert cluster.latency_s == pytest.approx(1e-4)
    assert {m.flops_per_s for m in cluster.machines} == {1e8}
    assert {m.message_s for m in cluster.machines} == {5e-5}


@pytest.mark.run
def test_a_pace_is_what_the_simulator_reckons_with_for_each_segment() -> None:
    """Without costs of messages the simulated machines are busy for exactly the paces of their segments."""
    like = Machine("m", 1e8, operator_s=EMULATED.operator_s, segment_s=2e-5, segment_back_s=3e-5)
    cluster = Cluster((like, Machine("n", 2e8)), 1e8)
    ready = capture_task(SMALL)
    winner = find_plan(ready.train, cluster).winner
    paces = compute_paces(winner.dataflow, winner.cluster)
    compiled = programs(winner.dataflow, training=True)
    assert [len(pace) for pace in paces] == [len(program.segments) for program in compiled]
    for machine, pace in enumerate(paces):
        assert sum(sum(kinds.values()) for kinds in pace) == pytest.approx(winner.simulation.busy_s[machine])


@pytest.mark.slow
def test_all_bytes_of_a_step_are_counted() -> None:
    way = plan_variant(SMALL, Cluster((Machine("m", 1e8), Machine("n", 1e8)), 1e8), 2, lambda line: None)
    sent = [activity for activity in way.simulation.timeline if activity.kind == SEND]
    told = sum(int(activity.label.split()[2]) for activity in sent)
    assert count_step_bytes(way.plan.dataflow, 2) == told > 0


@pytest.mark.slow
def test_a_paced_worker_takes_as_long_as_the_machine_it_stands_for() -> None:
    ready = capture_task(SMALL)
    winner = find_plan(ready.train, Cluster((Machine("m", 1e8),))).winner
    begin = time.monotonic()
    measured = measure_programs(
        SMALL, ready, programs(winner.dataflow, training=True), steps=3, paces=[[{"forward": 0.02, "backward": 0.03}]]
    )
    assert len(measured.seconds) == 3
    assert 0.05 <= measured.min_s < (time.monotonic() - begin) / (WARM_UP + 3)
    assert 0 < measured.busy_s < measured.min_s


@pytest.mark.slow
def test_promises_hold_or_not() -> None:
    assert all(make_result(1.0, 2.0).promises.values()) == (make_result(1.0, 2.0).micro.error <= 0.35)
    assert next(iter(make_result(1.0, 1.2).promises.values())) is False
    assert list(make_result(2.0, 2.0).promises.values())[1] is False


@pytest.mark.run
def test_page_and_data_tell_how_compute_was_done() -> None:
    one = make_result(1.1, 1.6)
    data = json.loads(json.dumps(tabulate(one).to_dict()))
    assert data["gain"] == pytest.approx(1.6)
    assert [row["micro_batches"] for row in data["rows"]][:2] == [1, 1]
    assert any("emulated" in line and "sleeps" in line for line in describe_conditions(one))
    page = render_cluster_page(one)
    assert "Predicted step, lock-step" in page
    assert "sleeps" in page


@pytest.mark.slow
@needs_namespaces
def test_the_command_compares_steps_on_real_name_spaces(tmp_path) -> None:
    options = [
        "--machines",
        "2",
        "--rounds",
        "1",
        "--steps",
        "2",
        "--micro-batches",
        "2",
        "--emulate-flops",
        "1 GFLOP/s",
        "--no-plain",
    ]
    out = tmp_path / "page.html"
    done = CliRunner().invoke(
        cluster_command, [*options, "--json", "-o", str(out), SMALL.model], catch_exceptions=False
    )
    data = json.loads(done.stdout)
    assert data["rows"][0]["step"] == "one machine"
    assert all(row["measured_s"] > 0 for row in data["rows"])
    assert data["rows"][-1]["bytes_sent"] > 0
    assert "<svg" in out.read_text()


@needs_namespaces
@pytest.mark.slow
def test_a_broken_link_ends_in_a_named_error() -> None:
    options = ["--machines", "2", "--micro-batches", "2", "--fault", "cut", "--json", SMALL.model]
    data = json.loads(CliRunner().invoke(cluster_command, options, catch_exceptions=False).stdout)
    assert data["error"] in ("ProcessLost", "NetworkError")
    assert data["code"]
    assert data["facts"]
    assert 0 < data["seconds"] < 30
