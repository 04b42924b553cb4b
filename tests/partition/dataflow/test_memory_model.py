"""What a machine must hold, and which segments are computed twice where that is too much."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from cutting import assert_same, pipeline, run_cut, run_plain, subject
from example_graphs import chain
from torch import nn

from cutset.errors import Infeasible
from cutset.partition.capture.export import capture
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.cut import Cut, one_machine_cut
from cutset.partition.dataflow.dataflow import Dataflow
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.memory_model import (
    KEPT_BYTES,
    least_memory,
    peak_memory,
    recompute_to_fit,
    state_bytes,
    whole_memory,
)
from cutset.partition.dataflow.simulator import simulate
from cutset.partition.placement.from_plan import plan_placement
from cutset.partition.placement.placement_file import Placement
from cutset.partition.placement.to_cut import cut_from_placement
from cutset.ps.client.replay_limit import DONATED_BYTES
from cutset.runtime.worker.program import programs

MICROS = 4
IN_FLIGHT = [MICROS] * 2
MODEL = "cutset.partition.dataflow.memory_model"


class Deep(nn.Module):
    """Activations much larger than weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(12)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def totals(dataflow: Dataflow, in_flight: Sequence[int] = ()) -> list[int]:
    return [sum(held) for held in peak_memory(dataflow, in_flight)]


def deep() -> Dataflow:
    graph, _ = capture(Deep(), lambda loss: loss, (torch.zeros(64, 8),), ())
    return lower_cut(graph, pipeline(graph, 2))


def test_a_gradient_that_is_added_takes_no_more_than_copies_that_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT_BYTES == DONATED_BYTES
    graph = chain(8, 8, 8, batch=4)
    found, largest, copies = lower_cut(graph, one_machine_cut(graph)), 4 * 64, 4 * 2 * 64
    kept, whole = sum(peak_memory(found)[0]), sum(whole_memory(graph))
    for bound, less in ((copies - 100, 100), (0, largest)):
        monkeypatch.setattr(f"{MODEL}.KEPT_BYTES", bound)
        assert (sum(peak_memory(found)[0]), sum(whole_memory(graph))) == (kept - less, whole - less)


def test_what_is_sent_counts_at_both_ends_forward_and_back() -> None:
    graph = chain(8, 8, 8, batch=4)
    first, *rest = graph.ops
    alone, both = (
        lower_cut(graph, Cut(2, {first.name: [(first.nest.box, 0)]} | {op.name: [(op.nest.box, at)] for op in rest}))
        for at in (0, 1)
    )
    weights, largest, activations = 3 * 4 * 64, 4 * 64, 2 * 4 * 4 * 8
    batch = 4 * 4 * 8 + 8 * 4  # inputs, labels
    loss = totals(alone)[0] - 2 * weights - largest - 2 * activations - batch
    assert 0 < loss < 1000
    assert peak_memory(both) == [
        (weights + batch + activations // 2, largest + activations),  # the copy on its way
        (weights + batch + activations + activations // 2, largest + activations + loss),
    ]


def test_operands_that_are_put_together_count_with_their_gradients() -> None:
    graph = chain(8, 8, 8, batch=4)
    first, *rest = graph.ops
    halves = [(((0, 4), (0, 4), *first.nest.box[2:]), 0), (((0, 4), (4, 8), *first.nest.box[2:]), 0)]
    ends = {op.name: [(op.nest.box, 0)] for op in rest}
    whole, divided = (
        totals(lower_cut(graph, Cut(1, {first.name: boxes} | ends)))[0] for boxes in ([(first.nest.box, 0)], halves)
    )
    assert divided == whole + 2 * 4 * 4 * 8


@pytest.mark.run
def test_activations_count_once_for_each_micro_batch_in_flight() -> None:
    one, two, three = (totals(deep(), [n] * 2) for n in (1, 2, 3))
    assert [b - a for a, b in zip(one, two, strict=True)] == [c - b for b, c in zip(two, three, strict=True)]
    assert all(b > a for a, b in zip(one, two, strict=True))


def test_parameters_of_fewer_bits_are_held_beside_their_masters() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False).bfloat16(), nn.BatchNorm1d(8, dtype=torch.bfloat16))
    graph, _ = capture(model, lambda y: y.sum(), (torch.zeros(4, 8, dtype=torch.bfloat16),), ())
    held = state_bytes(graph)
    assert held["0.weight"] == 3 * 4 + 2 * 2
    assert held["1.running_mean"] == 2
    assert set(state_bytes(deep().graph).values()) == {3 * 4}


def test_nothing_is_recomputed_where_there_is_room() -> None:
    spelled = deep()
    assert recompute_to_fit(spelled, uniform_cluster(2), IN_FLIGHT) is spelled


def small(bytes_: int):  # type: ignore[no-untyped-def]
    cluster = uniform_cluster(2)
    return replace(cluster, machines=tuple(replace(m, memory_bytes=bytes_) for m in cluster.machines))


def test_recomputed_segments_are_held_for_one_micro_batch_at_a_time() -> None:
    spelled = deep()
    whole = totals(spelled, IN_FLIGHT)
    lean = recompute_to_fit(spelled, small(max(whole) // 2), IN_FLIGHT)
    assert lean.cut.recomputed
    assert all(need <= max(whole) // 2 for need in totals(lean, IN_FLIGHT))
    marked = {(p.machine, s.stage) for p in programs(lean, training=True) for s in p.segments if s.recompute}
    assert marked == lean.cut.recomputed


def test_the_least_is_what_is_left_where_everything_is_recomputed() -> None:
    spelled = deep()
    least = [sum(held) for held in least_memory(spelled, IN_FLIGHT)]
    assert all(a < b for a, b in zip(least, totals(spelled, IN_FLIGHT), strict=True))
    tight = small(max(least))
    lean = recompute_to_fit(spelled, tight, IN_FLIGHT)
    assert totals(lean, IN_FLIGHT) <= [max(least), max(least)]


def test_the_whole_model_takes_about_what_one_machine_would_hold() -> None:
    graph = deep().graph
    for in_flight in (1, MICROS):
        (held,) = totals(lower_cut(graph, one_machine_cut(graph)), [in_flight])
        assert held <= sum(whole_memory(graph, in_flight=in_flight)) <= 1.5 * held


def test_only_what_comes_and_goes_takes_more_than_there_is() -> None:
    dataflow = deep()
    cluster = uniform_cluster(2)
    more = replace(cluster, machines=tuple(replace(m, memory_ratio=3.0, process_bytes=100) for m in cluster.machines))
    held, found = peak_memory(dataflow), simulate(dataflow, more).memory_bytes
    assert found == tuple(100 + each.steady + 3 * each.working for each in held)


def test_where_even_that_is_too_much_nothing_is_recomputed() -> None:
    assert not recompute_to_fit(deep(), small(1000), IN_FLIGHT).cut.recomputed


def planned(memory_bytes: int) -> Placement:
    graph, cluster = subject("mlp").graph, small(memory_bytes)
    return plan_placement(graph, cluster, model="mlp", micro_batches=MICROS, candidates="stages")


def test_a_plan_recomputes_where_memory_asks_for_it_and_says_so() -> None:
    of, roomy = subject("mlp"), planned(1 << 34)
    used = max(m.memory_used_bytes for m in roomy.machines)
    assert not any(m.recomputes for m in roomy.machines)
    tight = planned(used - 1)
    assert any(m.recomputes for m in tight.machines)
    assert max(m.memory_used_bytes for m in tight.machines) < used
    assert tight.predicted.step_s > roomy.predicted.step_s
    assert "recompute their activations" in tight.verdict
    cut = cut_from_placement(tight, of.graph)
    assert cut.recomputed == {(i, s) for i, m in enumerate(tight.machines) for s in m.recomputes}
    assert_same(run_cut(of, cut, micros=MICROS), run_plain(of, micros=MICROS), rtol=1e-11)
    with pytest.raises(Infeasible, match="E404"):
        planned(used // 4)
