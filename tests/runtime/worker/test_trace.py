"""A trace keeps the steps it is to record, whole ones, and workers fill it with what they do."""

from itertools import pairwise

import pytest
from cutting import STEP, finest_cut, load, subject

from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.trace import Span, Trace, pick_steps


def filled(*steps: int) -> Trace:
    trace = Trace(range(2, 5))
    for at, step in enumerate(steps):
        trace.add(Span("forward", step, at, at + 1.0))
    return trace


def test_other_steps_are_let_go() -> None:
    assert [span.step for span in filled(0, 1, 2, 2, 3, 4, 5).spans] == [2, 2, 3, 4]
    assert repr(filled(2, 3)) == "Trace(3 steps, 2 spans)"


@pytest.mark.parametrize(("most", "kept"), [(5, [2, 2, 3, 3, 4]), (4, [2, 2, 3, 3]), (3, [2, 2]), (2, [2, 2]), (1, [])])
def test_what_is_too_long_is_cut_after_a_whole_step(most: int, kept: list[int]) -> None:
    assert [span.step for span in filled(2, 2, 3, 3, 4).complete_steps(most)] == kept


@pytest.mark.parametrize(("first", "end"), [(0, 0), (0, 1), (7, 8), (0, 2), (0, 5), (30, 42), (0, 23), (90, 114)])
def test_of_a_short_run_all_but_its_first_steps_are_recorded(first: int, end: int) -> None:
    picked = pick_steps(first, end)
    assert picked == list(range(end - len(picked), end))
    assert first not in picked
    assert len(picked) >= (end - first) // 2


@pytest.mark.parametrize(("first", "end"), [(0, 60), (0, 224), (100, 324), (0, 10**6), (10**6, 2**62)])
def test_of_a_long_run_groups_of_steps_all_over_it_are_recorded(first: int, end: int) -> None:
    picked = pick_steps(first, end)
    groups = [step - first for step in picked if step - 1 not in picked]
    assert len(picked) == 18
    assert groups[0] == min(20, (end - first) // 4)
    assert picked[-1] == min(end, first + 100_000) - 1
    factors = [later / sooner for sooner, later in pairwise(groups)]
    assert len(factors) == 5
    assert max(factors) < 1.1 * min(factors), "each as many times as far from the begin as the one before"


def test_a_step_of_a_replica_leaves_both_ends_of_every_message_and_every_segment() -> None:
    of = subject("mlp")
    with Replica(programs(lower_cut(of.graph, finest_cut(of.graph, 2)), training=True)) as replica:
        load(replica, of)
        for worker in replica.workers:
            worker.trace.steps = range(STEP, STEP + 1)
        replica.step(of.several(3), STEP)
        replica.step(of.several(3), STEP + 1)
        spans = [worker.trace.spans for worker in replica.workers]
        segments = [len(worker.program.segments) for worker in replica.workers]
    for mine, count in zip(spans, segments, strict=True):
        for kind in ("forward", "backward"):
            assert sorted((s.micro, s.part) for s in mine if s.kind == kind) == [
                (micro, part) for micro in range(3) for part in range(count)
            ]
        (step,) = [s for s in mine if s.kind == "step"]
        assert all(step.start_s <= s.start_s <= s.stop_s <= step.stop_s for s in mine)
    for machine, other in ((0, 1), (1, 0)):
        sent = sorted((s.what, s.micro, s.part, s.bytes) for s in spans[machine] if s.kind == "send")
        assert sent
        assert sent == sorted((s.what, s.micro, s.part, s.bytes) for s in spans[other] if s.kind == "receive")
