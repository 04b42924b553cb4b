"""Steps and messages are put together of what each machine recorded alone."""

import msgspec
import pytest
from recording import exchange, one_after_another, run

from cutset.runtime.worker.trace import Span
from cutset.tools.analysis.recorded_steps import (
    bounds,
    other_work,
    recorded,
    transfers,
    typical_step,
    waits,
    whole_steps,
)


def longer(step: int, by: float, at: float) -> list[list[Span]]:
    """A step that machine 1 ends later."""
    first, second = exchange(step, at)
    return [first, [*second[:-1], Span("step", step, at, at + 10 + by)]]


def test_a_step_counts_where_every_machine_has_its_end() -> None:
    one, other = one_after_another(exchange(5), exchange(6, 30.0), exchange(7, 50.0))
    assert whole_steps([one, other]) == [5, 6, 7]
    assert whole_steps([one, [s for s in other if (s.kind, s.step) != ("step", 6)]]) == [5, 7]
    assert whole_steps([one, []]) == []
    assert whole_steps([]) == []


def test_a_step_lasts_from_the_first_to_begin_to_the_last_to_end() -> None:
    assert bounds(longer(3, 2.0, at=10.0), 3) == (10.0, 22.0)
    first, second = exchange(3)
    assert bounds([first, [Span("step", 3, 9.0, 12.0) if s.kind == "step" else s for s in second]], 3) == (9.0, 20.0)


def test_the_typical_step_is_the_median() -> None:
    steps = [longer(step, by, 30.0 * step) for step, by in ((1, 9.0), (2, 0.0), (3, 1.0), (4, 2.0), (5, 3.0))]
    assert typical_step(one_after_another(*steps)) == 4
    assert typical_step(one_after_another(*steps[1:])) == 3, "of an even number the shorter of the middle ones"
    assert typical_step([[], []]) is None


def test_a_message_is_found_from_its_sending_to_its_taking() -> None:
    there, back = transfers(exchange(2))
    assert (there.source, there.target, there.what, there.edge, there.bytes) == (0, 1, "forward", 4, 100)
    assert (there.sent_s, there.taken_s) == (12.0, 13.0)
    assert (back.source, back.target, back.sent_s, back.taken_s) == (1, 0, 16.0, 18.0)


def test_messages_of_other_steps_micro_batches_and_directions_are_not_mixed_up() -> None:
    first, second = exchange(2)
    for change in ({"step": 3}, {"micro": 1}, {"part": 5}, {"what": "fold"}, {"peer": 0}):
        queued = msgspec.structs.replace(first[1], **change)
        assert [t.what for t in transfers([[first[0], queued, *first[2:]], second])] == ["backward"]


def test_a_message_that_is_taken_before_its_sender_notes_it_takes_no_time() -> None:
    first, second = exchange(2)
    late = msgspec.structs.replace(first[1], start_s=13.5, stop_s=13.5)
    there = transfers([[first[0], late, *first[2:]], second])[0]
    assert there.sent_s == there.taken_s == 13.5


def test_a_wait_goes_with_the_message_taken_next() -> None:
    first, second = exchange(2)
    assert [(wait.start_s, taken and taken.peer) for wait, taken in waits(first)] == [(12.0, 1)]
    assert [(wait.start_s, taken and taken.peer) for wait, taken in waits(second)] == [(10.0, 0)]
    broken = [Span("wait", 1, 0.0, 1.0), Span("wait", 1, 1.0, 2.0), first[3], Span("wait", 1, 4.0, 5.0)]
    assert [taken and taken.peer for _, taken in waits(broken)] == [None, 1, None]


def test_what_is_neither_computing_nor_waiting_is_other_work() -> None:
    first, second = exchange(2)
    assert other_work(first) == [(19.5, 20.0)]
    assert other_work(second) == [(16.0, 17.0)]
    assert other_work([Span("step", 1, 0.0, 4.0), Span("forward", 1, 1.0, 2.0)]) == [(0.0, 1.0), (2.0, 4.0)]
    assert other_work([Span("forward", 1, 1.0, 2.0)]) == []


def test_spans_come_back_from_what_workers_return() -> None:
    spans = exchange(1)
    results = [{"spans": msgspec.json.decode(msgspec.json.encode(mine))} for mine in spans]
    assert recorded(results) == spans
    assert recorded([{}]) == [[]]
    with pytest.raises(msgspec.ValidationError):
        recorded([{"spans": [["forward", "five"]]}])


def test_workers_record_whole_steps_and_all_their_messages() -> None:
    spans, parts = run([3, 4])
    assert whole_steps(spans) == [3, 4]
    found = transfers(spans)
    assert len(found) == sum(span.kind == "send" for mine in spans for span in mine) > 0
    assert all(t.edge in parts[t.target].arrivals for t in found if t.what == "forward")
    for mine in spans:
        covered = sum(s.stop_s - s.start_s for s in mine if s.kind in ("forward", "backward", "wait"))
        rest = sum(stop - start for start, stop in other_work(mine))
        assert covered + rest == pytest.approx(sum(s.stop_s - s.start_s for s in mine if s.kind == "step"))
