"""Steps and messages are put together of what each machine recorded alone."""

from itertools import pairwise

import msgspec
import pytest
from recording import exchange, halves, one_after_another, run

from cutset.runtime.worker.trace import Span
from cutset.tools.analysis import recorded_steps as module
from cutset.tools.analysis.recorded_steps import (
    find_bounds,
    find_group,
    find_other_work,
    find_whole_steps,
    match_transfers,
    measure_typical_step,
    pair_waits,
    pick_typical_step,
    read_spans,
)


def longer(step: int, by: float, at: float) -> list[list[Span]]:
    """A step that machine 1 ends later."""
    first, second = exchange(step, at)
    return [first, [*second[:-1], Span("step", step, at, at + 10 + by)]]


def test_a_step_counts_where_every_machine_has_its_end() -> None:
    one, other = one_after_another(exchange(5), exchange(6, 30.0), exchange(7, 50.0))
    assert find_whole_steps([one, other]) == [5, 6, 7]
    assert find_whole_steps([one, [s for s in other if (s.kind, s.step) != ("step", 6)]]) == [5, 7]
    assert find_whole_steps([one, []]) == []
    assert find_whole_steps([]) == []


def test_a_step_lasts_from_the_first_to_begin_to_the_last_to_end() -> None:
    assert find_bounds(longer(3, 2.0, at=10.0), 3) == (10.0, 22.0)
    first, second = exchange(3)
    assert find_bounds([first, [Span("step", 3, 9.0, 12.0) if s.kind == "step" else s for s in second]], 3) == (
        9.0,
        20.0,
    )


def test_the_typical_step_is_the_median() -> None:
    steps = [longer(step, by, 30.0 * step) for step, by in ((1, 9.0), (2, 0.0), (3, 1.0), (4, 2.0), (5, 3.0))]
    assert pick_typical_step(one_after_another(*steps)) == 4
    assert pick_typical_step(one_after_another(*steps[1:])) == 3, "of an even number the shorter of the middle ones"
    assert pick_typical_step([[], []]) is None


def test_a_group_has_the_steps_that_follow_each_other_around_one() -> None:
    recorded = one_after_another(*(exchange(step, 30.0 * step) for step in (2, 4, 5, 6, 9)))
    assert [find_group(recorded, step) for step in (2, 4, 5, 6)] == [range(2, 3), *[range(4, 7)] * 3]


def test_a_message_is_found_from_its_sending_to_its_taking() -> None:
    there, back = match_transfers(exchange(2))
    assert (there.source, there.target, there.what, there.edge, there.bytes) == (0, 1, "forward", 4, 100)
    assert (there.sent_s, there.taken_s) == (12.0, 13.0)
    assert (back.source, back.target, back.sent_s, back.taken_s) == (1, 0, 16.0, 18.0)


def test_messages_of_other_steps_micro_batches_and_directions_are_not_mixed_up() -> None:
    first, second = exchange(2)
    for change in ({"step": 3}, {"micro": 1}, {"part": 5}, {"what": "fold"}, {"peer": 0}):
        queued = msgspec.structs.replace(first[1], **change)
        assert [t.what for t in match_transfers([[first[0], queued, *first[2:]], second])] == ["backward"]


def test_a_message_that_is_taken_before_its_sender_notes_it_takes_no_time() -> None:
    first, second = exchange(2)
    late = msgspec.structs.replace(first[1], start_s=13.5, stop_s=13.5)
    there = match_transfers([[first[0], late, *first[2:]], second])[0]
    assert there.sent_s == there.taken_s == 13.5


def test_a_wait_goes_with_the_message_taken_next() -> None:
    first, second = exchange(2)
    assert [(wait.start_s, taken and taken.peer) for wait, taken in pair_waits(first)] == [(12.0, 1)]
    assert [(wait.start_s, taken and taken.peer) for wait, taken in pair_waits(second)] == [(10.0, 0)]
    broken = [Span("wait", 1, 0.0, 1.0), Span("wait", 1, 1.0, 2.0), first[3], Span("wait", 1, 4.0, 5.0)]
    assert [taken and taken.peer for _, taken in pair_waits(broken)] == [None, 1, None]


def test_what_is_neither_computing_nor_waiting_is_other_work() -> None:
    first, second = exchange(2)
    assert find_other_work(first) == [(19.5, 20.0)]
    assert find_other_work(second) == [(16.0, 17.0)]
    assert find_other_work([Span("step", 1, 0.0, 4.0), Span("forward", 1, 1.0, 2.0)]) == [(0.0, 1.0), (2.0, 4.0)]
    assert find_other_work([Span("forward", 1, 1.0, 2.0)]) == []


def test_spans_come_back_from_what_workers_return() -> None:
    spans = exchange(1)
    results = [{"spans": msgspec.json.decode(msgspec.json.encode(mine))} for mine in spans]
    assert read_spans(results) == spans
    assert read_spans([{}]) == [[]]
    with pytest.raises(msgspec.ValidationError):
        read_spans([{"spans": [["forward", "five"]]}])


def test_workers_record_whole_steps_and_all_their_messages() -> None:
    spans, parts = run([3, 4])
    assert find_whole_steps(spans) == [3, 4]
    found = match_transfers(spans)
    assert len(found) == sum(span.kind == "send" for mine in spans for span in mine) > 0
    assert all(t.edge in parts[t.target].arrivals for t in found if t.what == "forward")
    for mine in spans:
        covered = sum(s.stop_s - s.start_s for s in mine if s.kind in ("forward", "backward", "wait"))
        rest = sum(stop - start for start, stop in find_other_work(mine))
        assert covered + rest == pytest.approx(sum(s.stop_s - s.start_s for s in mine if s.kind == "step"))


def test_a_step_becomes_a_timeline_from_its_beginning() -> None:
    _, parts = halves()
    found = measure_typical_step(one_after_another(exchange(6, 10.0), exchange(7, 40.0)), parts)
    assert found is not None
    assert (found.step, found.of, found.step_s) == (6, 2, 10.0)
    rows = {(i.machine, i.kind, i.label): (i.start_s, i.stop_s) for i in found.timeline}
    assert rows == {
        (0, "forward", "forward 0"): (0.0, 2.0),
        (0, "send", "to 1, 100 bytes"): (2.0, 3.0),
        (0, "wait", "for 1"): (2.0, 8.0),
        (0, "backward", "backward 0"): (8.0, 9.5),
        (0, "other", "work"): (9.5, 10.0),
        (1, "wait", "for 0"): (0.0, 3.0),
        (1, "forward", "forward 0"): (3.0, 5.0),
        (1, "backward", "backward 0"): (5.0, 6.0),
        (1, "send", "to 0, 60 bytes"): (6.0, 8.0),
        (1, "other", "work"): (6.0, 7.0),
    }


def test_without_a_whole_step_there_is_no_typical_step() -> None:
    _, parts = halves()
    assert measure_typical_step([[], []], parts) is None
    assert measure_typical_step([], []) is None


def test_of_a_very_long_step_the_sends_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INTERVALS", 9)
    found = measure_typical_step(exchange(6), halves()[1])
    assert found is not None
    assert len(found.timeline) == 8
    assert not [i for i in found.timeline if i.kind == "send"]


def test_a_real_step_is_covered_without_overlaps_and_names_stages_and_micro_batches() -> None:
    spans, parts = run([3, 4, 5])
    found = measure_typical_step(spans, parts)
    assert found is not None
    assert found.of == 3
    for machine, part in enumerate(parts):
        mine = [i for i in found.timeline if i.machine == machine and i.kind != "send"]
        assert all(before.stop_s <= after.start_s for before, after in pairwise(mine))
        assert 0.0 <= mine[0].start_s <= mine[-1].stop_s <= found.step_s
        labels = {i.label for i in mine if i.kind == "backward"}
        assert labels == {f"backward {s.stage} of micro-batch {m}" for s in part.segments for m in range(2)}
