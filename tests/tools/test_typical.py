"""The typical step is drawn as predictions are: from its beginning, with stages and micro-batches by name."""

from itertools import pairwise

import pytest
from recording import exchange, halves, one_after_another, run

from cutset.tools.analysis import typical as module
from cutset.tools.analysis.typical import typical


def test_a_step_becomes_a_timeline_from_its_beginning() -> None:
    _, parts = halves()
    found = typical(one_after_another(exchange(6, 10.0), exchange(7, 40.0)), parts)
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


def test_nothing_whole_means_nothing_typical() -> None:
    _, parts = halves()
    assert typical([[], []], parts) is None
    assert typical([], []) is None


def test_of_a_very_long_step_the_sends_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVALS_MAX", 9)
    found = typical(exchange(6), halves()[1])
    assert found is not None
    assert len(found.timeline) == 8
    assert not [i for i in found.timeline if i.kind == "send"]


def test_a_real_step_is_covered_without_overlaps_and_names_stages_and_micro_batches() -> None:
    spans, parts = run([3, 4, 5])
    found = typical(spans, parts)
    assert found is not None
    assert found.of == 3
    for machine, part in enumerate(parts):
        mine = [i for i in found.timeline if i.machine == machine and i.kind != "send"]
        assert all(before.stop_s <= after.start_s for before, after in pairwise(mine))
        assert 0.0 <= mine[0].start_s <= mine[-1].stop_s <= found.step_s
        labels = {i.label for i in mine if i.kind == "backward"}
        assert labels == {f"backward {s.stage} of micro-batch {m}" for s in part.segments for m in range(2)}
