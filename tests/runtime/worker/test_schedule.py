"""Schedules: what they are, that they print and parse, and that a step is the same in each of them."""

import pytest
from cutting import assert_same, finest_cut, pipeline, planned, run_cut, run_plain, subject
from hypothesis import given
from hypothesis import strategies as st
from marking import with_slow

from cutset.errors import UsageError
from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.schedule import (
    NAMES,
    Action,
    count_in_flight,
    format_schedule,
    gpipe,
    one_forward_one_backward,
    parse_schedule,
    schedule,
)

counts = st.integers(1, 5)


def test_gpipe_runs_all_forward_first() -> None:
    assert format_schedule(gpipe(1, 3)) == "0F0 0F1 0F2 0B0 0B1 0B2"
    assert format_schedule(gpipe(2, 2)) == "0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1"


def test_one_forward_one_backward_holds_as_many_as_the_pipeline_is_deep() -> None:
    assert format_schedule(one_forward_one_backward(1, 4, 1)) == "0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3"
    assert format_schedule(one_forward_one_backward(1, 4, 3)) == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3"


def test_what_backward_left_follows_the_segment_it_was_left_to() -> None:
    actions = gpipe(2, 2, {1: 0})
    assert format_schedule(actions) == "0F0 1F0 0F1 1F1 1B0 0B0 1W0 1B1 0B1 1W1"
    assert parse_schedule(format_schedule(actions)) == actions
    assert count_in_flight(one_forward_one_backward(2, 3, 1, {0: 0})) == 1


@given(segments=counts, micros=counts, depth=counts)
def test_every_schedule_runs_everything_once_and_reads_back(segments: int, micros: int, depth: int) -> None:
    for actions in (gpipe(segments, micros), one_forward_one_backward(segments, micros, depth)):
        assert parse_schedule(format_schedule(actions)) == actions
        for micro in range(micros):
            mine = [(a.segment, a.kind) for a in actions if a.micro == micro]
            assert mine == [(s, "F") for s in range(segments)] + [(s, "B") for s in reversed(range(segments))]
    assert count_in_flight(gpipe(segments, micros)) == micros
    assert count_in_flight(one_forward_one_backward(segments, micros, depth)) == min(depth, micros)


@pytest.mark.parametrize("word", ["2X0", "F0", "2F", "-1F0", "2F0,"])
def test_what_is_no_action_is_named(word: str) -> None:
    with pytest.raises(UsageError, match=f"E270: '{word}' is no action"):
        parse_schedule(f"0F0 {word}")


def test_an_unknown_schedule_is_named() -> None:
    assert parse_schedule("2F0 1B3") == [Action(2, "F", 0), Action(1, "B", 3)]
    with pytest.raises(UsageError, match="E271: no schedule 'zigzag'; there are dataflow, gpipe, 1f1b"):
        schedule("zigzag", segments=1, micros=1, depth=1)


def test_depth_counts_the_stages_to_the_end() -> None:
    graph = subject("mlp").graph
    assert [p.depth for p in programs(lower_cut(graph, pipeline(graph, 3)), training=True)] == [3, 2, 1]
    assert {p.depth for p in programs(lower_cut(graph, finest_cut(graph, 3)), training=True)} == {1}


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("order", NAMES)
@pytest.mark.parametrize("name", with_slow(["mlp", "running_mean"], ["conv", "transformer_dropout"]))
def test_a_step_is_that_of_plain_torch_in_every_order(name: str, order: str) -> None:
    of = subject(name)
    for cut in (finest_cut(of.graph, 3), pipeline(of.graph, 3), planned(name, 3)[-1].cut):
        assert_same(run_cut(of, cut, micros=5, order=order), run_plain(of, micros=5), rtol=1e-11)
