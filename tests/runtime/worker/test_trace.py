"""A trace keeps the steps it is to record, whole ones, and workers fill it with what they do."""

import pytest
from cutting import STEP, finest_cut, load, subject

from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.trace import Span, Trace, warm_steps


def filled(*steps: int) -> Trace:
    trace = Trace(range(2, 5))
    for at, step in enumerate(steps):
        trace.add(Span("forward", step, at, at + 1.0))
    return trace


def test_other_steps_are_let_go() -> None:
    assert [span.step for span in filled(0, 1, 2, 2, 3, 4, 5).spans] == [2, 2, 3, 4]
    assert repr(filled(2, 3)) == "Trace(steps 2 to 4, 2 spans)"


@pytest.mark.parametrize(("most", "kept"), [(5, [2, 2, 3, 3, 4]), (4, [2, 2, 3, 3]), (3, [2, 2]), (2, [2, 2]), (1, [])])
def test_what_is_too_long_is_cut_after_a_whole_step(most: int, kept: list[int]) -> None:
    assert [span.step for span in filled(2, 2, 3, 3, 4).complete_steps(most)] == kept


@pytest.mark.parametrize(
    ("steps", "recorded"),
    [(0, []), (1, []), (2, [1]), (5, [1, 2, 3, 4]), (12, [3, 4, 5, 6, 7]), (10**6, range(20, 25))],
)
def test_warm_steps_are_recorded_and_never_the_first(steps: int, recorded: list[int]) -> None:
    assert list(warm_steps(steps)) == list(recorded)


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
