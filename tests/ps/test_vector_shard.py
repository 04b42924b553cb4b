"""The protocol of a shard of vectors, message by message: operations, and what it tells of itself."""

import pytest
from told_shard import BEGIN, SLICES, WHOLE, Told
from told_shard import told as told

from cutset.errors import NetworkError
from cutset.ps.sandblaster.vector_ops import AT, Absolute, Axpy, Copy, Dot, Drop, Evaluate, Largest, Scale


def test_it_begins_with_the_first_values(told):
    assert told.values == BEGIN


def test_operations_are_carried_out_on_all_slices_and_their_shares_joined(told):
    first = told.operate(1, Dot(AT, AT), Scale(AT, 2.0), Absolute(AT), Largest(AT))
    assert first == [told.operated(1, 4 + 9 + 16 + 1 + 100, 2 * (2 + 3 + 4 + 1 + 10), 20.0)]
    assert told.values == {0: [4, 6, 8], 2: [-2, 20]}
    assert told.operate(2, Copy("b", AT), Axpy(AT, -1.0, "b"), Dot("b", "b"), Drop(["b"])) == [told.operated(2, 520.0)]
    assert told.values == {0: [0, 0, 0], 2: [0, 0]}
    assert told.operate(3) == [told.operated(3)]


def test_a_batch_that_comes_again_is_answered_again_and_not_carried_out_again(told):
    batch = [Scale(AT, 2.0), Absolute(AT)]
    answer = [told.operated(1, 40.0)]
    assert [told.operate(1, *batch) for _ in range(3)] == [answer] * 3
    assert told.values == {0: [4, 6, 8], 2: [-2, 20]}
    assert told.operate(2, *batch) == [told.operated(2, 80.0)]
    assert told.operate(2, *batch, sender="coordinator.1") == [told.operated(2, 80.0, to="coordinator.1")]


def test_a_batch_that_leaves_one_out_is_refused(told):
    told.operate(1, Scale(AT, 2.0))
    for number in (3, 0, -1):
        with pytest.raises(NetworkError, match=f"has number {number}; the last was 1") as caught:
            told.operate(number, Scale(AT, 2.0))
        assert caught.value.code == "E550"
    assert told.values == {0: [4, 6, 8], 2: [-2, 20]}


def test_a_batch_is_refused_while_another_waits_for_gradients(told):
    assert told.operate(1, Evaluate(AT, "g", 0, 1)) == []
    with pytest.raises(NetworkError, match="has number 2; the last was 0"):
        told.operate(2, Scale(AT, 2.0))


@pytest.mark.parametrize(
    "batch", [[{"type": "no such"}], [{"type": "dot", "a": 1, "b": "x"}], [3], "dot", [{"type": "dot", "a": "x"}]]
)
def test_what_is_no_batch_is_refused(told, batch):
    with pytest.raises(NetworkError, match="is no batch of operations"):
        told.say("coordinator", "operate", {"epoch": 1, "number": 1, "batch": batch})
    assert told.operate(1, Absolute(AT)) == [told.operated(1, 20.0)]


def test_a_vector_that_is_not_there_is_named(told):
    told.operate(1, Copy("b", AT))
    with pytest.raises(NetworkError, match="names vector 'gone'; there are at, b"):
        told.operate(2, Scale("gone", 2.0))


def test_a_message_of_an_unknown_kind_is_refused(told):
    with pytest.raises(NetworkError, match="is of an unknown kind"):
        told.say("worker-0.0", "push", {})


def test_what_belongs_to_another_epoch_changes_nothing(told):
    told.back(3, 0)
    for epoch in (1, 2, 4):
        assert told.operate(1, Scale(AT, 2.0), epoch=epoch) == []
        assert told.commit(0, epoch=epoch) == []
    assert told.values == BEGIN
    assert not told.folder.exists()
    assert told.operate(1, Absolute(AT)) == [told.operated(1, 20.0)]


# What it tells


def test_holdings_are_the_parameters(told):
    told.operate(1, Scale(AT, 2.0), Copy("other", AT))
    held = told.shard.holdings()
    assert [(one.slice, one.value.tolist(), one.state, one.version) for one in held] == [
        (SLICES[0], [4, 6, 8], {}, 1),
        (SLICES[1], [-2, 20], {}, 1),
    ]


def test_statistics_count_what_was_done(told):
    told.operate(1, Copy("b", AT), Dot("b", "b"))
    told.operate(1, Copy("b", AT), Dot("b", "b"))
    told.operate(2, Evaluate(AT, "g", 0, 1))
    told.point(2)
    told.point(2, edge=2)
    told.point(1)
    told.gradient(2, 0, 0, 1.0, 1.0, 1.0)
    told.gradient(1, 0, 0, 1.0, 1.0, edge=2)
    told.gradient(2, 0, 0, 1.0, 1.0, edge=2)
    told.read(0)
    assert told.shard.statistics() == {
        "shard": 1,
        "vectors": 3,
        "operations": 3,
        "round_trips": 3,
        "gradients": 2,
        "late": 2,
        "bytes_in": 8 * (3 + 2 + 2),
        "bytes_out": 8 * (3 + 2 + 3),
    }


def test_nothing_goes_on_unasked(told):
    assert (told.shard.turn(), told.shard.close(), told.shard.busy) == ([], [], False)


def test_a_shard_without_slices_answers(tmp_path):
    told = Told(tmp_path, slices=[])
    assert told.operate(1, Dot(AT, AT), Evaluate(AT, "g", 0, 4), Largest("g")) == [told.operated(1, 0.0, 0.0, 0.0)]
    assert told.commit(1) == [("coordinator", "committed", {"epoch": 1, "number": 1}, [])]
    assert told.back(2, 1) == [("coordinator", "rolled back", {"epoch": 2}, [])]


def test_first_values_are_not_the_callers_own(told):
    told.operate(1, Scale(AT, 2.0))
    assert WHOLE[0].tolist() == list(range(8))
