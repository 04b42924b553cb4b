"""Constants from times: those that the times were made with come out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.cluster.cost_model import CostModel, Work
from cutset.partition.cluster.machines import Machine, Rate
from cutset.partition.ir.graph import Graph
from cutset.tools.probe.fit_constants import (
    ChainSample,
    LinearFit,
    OperatorSample,
    fit_line,
    fit_machine,
    fit_network,
    make_cluster,
)
from cutset.tools.probe.probe_models import make_chains

TRUE = Machine(
    "m",
    flops_per_s=100e9,
    rates={
        "contraction": Rate(100e9, 80e9, 40e-6, 12e-6),
        "pooling": Rate(0.5e9, 2e9, 30e-6, 15e-6),
        "view": Rate(100e9, 80e9, 28e-6, 9e-6),
    },
    memory_bandwidth=20e9,
    operator_s=20e-6,
    gradient_s=10e-6,
    segment_s=18e-6,
    segment_back_s=25e-6,
)


def work(kind: str, size: float, *, gradients: int = 3, added: int = 0) -> Work:
    flops = 0.0 if kind in ("elementwise", "view") else size
    moved = int(size) if kind == "elementwise" else 0
    return Work(kind, flops, moved, 2 * flops, 2 * moved, added, gradients)


def samples() -> list[OperatorSample]:
    works = [work("contraction", flops, added=int(flops / 100)) for flops in (1e3, 1e7, 1e8)]
    works += [work("pooling", flops, gradients=1) for flops in (100, 1e5, 1e6)]
    works += [work("elementwise", size, gradients=1) for size in (1e3, 1e6, 1e7)]
    works += [work("view", 0, gradients=1)]
    timed = [(w, *w.seconds(TRUE)) for w in works]
    return [OperatorSample(w.kind, "some", w, f + TRUE.segment_s, b + TRUE.segment_back_s) for w, f, b in timed]


def test_a_machine_is_known_by_its_times():
    ahead, back = TRUE.segment_s, TRUE.segment_back_s
    repeated = {n: (ahead + n * TRUE.operator_s, back + n * TRUE.gradient_s) for n in (1, 4, 16)}
    found = fit_machine("m", samples(), repeated)
    assert found.flops_per_s == pytest.approx(TRUE.flops_per_s, rel=1e-2)
    for name in ("memory_bandwidth", "operator_s", "gradient_s", "segment_s", "segment_back_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-2), name
    assert set(found.rates) == set(TRUE.rates)
    for kind, rate in found.rates.items():
        for name in ("flops_per_s", "backward_flops_per_s", "start_s", "gradient_s"):
            if kind != "view" or "flops" not in name:
                assert getattr(rate, name) == pytest.approx(getattr(TRUE.rates[kind], name), rel=2e-2), (kind, name)


@pytest.fixture(scope="module")
def graphs() -> tuple[Graph, Graph]:
    found = make_chains()
    return found[0].whole, found[-1].whole


def test_a_network_is_known_by_what_chains_take_longer_between_two_machines(graphs):
    message, latency, bandwidth, step, cold = 80e-6, 150e-6, 0.7e9, 60e-6, 0.4
    true = replace(TRUE, message_s=message, step_s=step, cold=cold)
    few, many = (sum(sum(w.starts(true)) for w in works(graph)) for graph in graphs)
    computed = [sum(sum(w.seconds(true)) for w in works(graph)) for graph in graphs]
    segments = 6 * (TRUE.segment_s + TRUE.segment_back_s)

    def sample(size: int, seconds: float, starts: float, joins: int) -> ChainSample:
        alone = TRUE.segment_s + TRUE.segment_back_s + step + seconds
        carried = 12 * size / bandwidth + (12 + joins) * (2 * message + latency)
        busy = alone + segments + 12 * 2 * message + cold * starts
        return ChainSample(size, alone, alone + segments + carried + cold * starts, 12, 6, joins, busy)

    samples = [sample(256, computed[0], few, 0), *(sample(size, computed[0], few, 2) for size in (1 << 16, 1 << 20))]
    samples.append(sample(256, computed[1], many, 0))
    machine, found_bandwidth, found_latency = fit_network(TRUE, graphs, samples)
    assert found_bandwidth == pytest.approx(bandwidth, rel=1e-2)
    assert found_latency == pytest.approx(latency, rel=1e-2)
    assert machine.message_s == pytest.approx(message, rel=1e-3)
    assert machine.step_s == pytest.approx(step, rel=1e-2)
    assert machine.cold == pytest.approx(cold, rel=1e-2)


def test_starts_that_cost_nothing_cost_nothing_when_cold(graphs):
    free = replace(TRUE, operator_s=0.0, gradient_s=0.0, rates={})
    samples = [
        ChainSample(size, 1e-4, t, 12, 6) for size, t in ((256, 5e-3), (1 << 16, 6e-3), (1 << 20, 9e-3), (256, 8e-3))
    ]
    assert 0 <= fit_network(free, graphs, samples)[0].cold <= 3


def works(graph: Graph) -> list[Work]:
    costs = CostModel(graph.tensors)
    return [costs.work(op, op.nest.box) for op in graph.ops]


def test_a_line_goes_through_points_that_lie_on_one():
    line = fit_line([(x, 3 + 0.5 * x) for x in (1, 10, 1000)])
    assert (line.start, line.slope) == pytest.approx((3, 0.5))


def test_a_line_minds_relative_errors():
    assert fit_line([(1.0, 1.0), (1e6, 1e6), (1e6, 1.1e6)]).start == pytest.approx(0.0, abs=0.3)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(1e-9, 1e3)), min_size=1, max_size=5))
def test_no_line_has_a_negative_part(points):
    line = fit_line(points)
    assert line.start >= 0
    assert line.slope >= 0


def test_a_line_through_equal_sizes_is_their_mean():
    assert fit_line([(5, 2.0), (5, 2.0)]) == LinearFit(2.0, 0.0)


def test_a_cluster_is_of_machines_alike_with_names_of_their_own():
    cluster = make_cluster(TRUE, 3, 1e9, 1e-4)
    assert [m.name for m in cluster.machines] == ["m 0", "m 1", "m 2"]
    assert (cluster.bandwidth, cluster.latency_s) == (1e9, 1e-4)
    assert make_cluster(TRUE, 1, 1e9, 1e-4).machines == (TRUE,)


def test_noise_that_leaves_a_line_flat_makes_nothing_infinitely_fast(graphs):
    samples = [ChainSample(size, 1e-4, 5e-3, 12, 6) for size in (256, 1 << 16, 1 << 20, 256)]
    machine, bandwidth, latency = fit_network(TRUE, graphs, samples)
    assert bandwidth == pytest.approx(4 * (1 << 20) / (latency + 2 * machine.message_s), rel=1e-2)
    assert machine.cold == 0
