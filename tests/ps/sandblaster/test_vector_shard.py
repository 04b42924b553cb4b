"""The protocol of a shard of vectors, message by message: operations, and what it tells of itself."""

import msgspec
import pytest
from scripted_shard import INITIAL_VALUES, SLICES, WHOLE, ScriptedShard
from scripted_shard import scripted as scripted

from cutset.errors import NetworkError
from cutset.ps.sandblaster.vector_ops import ITERATE, Axpy, Copy, Dot, Drop, Evaluate, L1Norm, MaxNorm, Scale


def test_it_begins_with_the_first_values(scripted):
    assert scripted.values == INITIAL_VALUES


def test_operations_are_carried_out_on_all_slices_and_their_shares_joined(scripted):
    first = scripted.operate(1, Dot(ITERATE, ITERATE), Scale(ITERATE, 2.0), L1Norm(ITERATE), MaxNorm(ITERATE))
    assert first == [scripted.operated(1, 4 + 9 + 16 + 1 + 100, 2 * (2 + 3 + 4 + 1 + 10), 20.0)]
    assert scripted.values == {0: [4, 6, 8], 2: [-2, 20]}
    assert scripted.operate(2, Copy("b", ITERATE), Axpy(ITERATE, -1.0, "b"), Dot("b", "b"), Drop(["b"])) == [
        scripted.operated(2, 520.0)
    ]
    assert scripted.values == {0: [0, 0, 0], 2: [0, 0]}
    assert scripted.operate(3) == [scripted.operated(3)]


def test_a_batch_that_comes_again_is_answered_again_and_not_carried_out_again(scripted):
    batch = [Scale(ITERATE, 2.0), L1Norm(ITERATE)]
    answer = [scripted.operated(1, 40.0)]
    assert [scripted.operate(1, *batch) for _ in range(3)] == [answer] * 3
    assert scripted.values == {0: [4, 6, 8], 2: [-2, 20]}
    assert scripted.operate(2, *batch) == [scripted.operated(2, 80.0)]
    assert scripted.operate(2, *batch, sender="coordinator.1") == [scripted.operated(2, 80.0, to="coordinator.1")]


def test_a_batch_that_leaves_one_out_is_refused(scripted):
    scripted.operate(1, Scale(ITERATE, 2.0))
    for number in (3, 0, -1):
        with pytest.raises(NetworkError, match=f"has number {number}; the last was 1") as caught:
            scripted.operate(number, Scale(ITERATE, 2.0))
        assert caught.value.code == "E550"
    assert scripted.values == {0: [4, 6, 8], 2: [-2, 20]}


def test_a_batch_is_refused_while_another_waits_for_gradients(scripted):
    assert scripted.operate(1, Evaluate(ITERATE, "g", 0, 1)) == []
    with pytest.raises(NetworkError, match="has number 2; the last was 0"):
        scripted.operate(2, Scale(ITERATE, 2.0))


def test_its_status_can_be_sent_while_it_waits_for_gradients(scripted):
    """By the thread of heartbeats: what is plain data, and is not the shard's own."""
    scripted.operate(1, Scale(ITERATE, 2.0))
    scripted.operate(2, Evaluate(ITERATE, "g", 0, 1))
    status = scripted.shard.status()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(status)) == status == {"batches": 1}


@pytest.mark.parametrize(
    "batch", [[{"type": "no such"}], [{"type": "dot", "a": 1, "b": "x"}], [3], "dot", [{"type": "dot", "a": "x"}]]
)
def test_what_is_no_batch_is_refused(scripted, batch):
    with pytest.raises(NetworkError, match="is no batch of operations"):
        scripted.say("coordinator", "operate", {"epoch": 1, "number": 1, "batch": batch})
    assert scripted.operate(1, L1Norm(ITERATE)) == [scripted.operated(1, 20.0)]


def test_a_vector_that_is_not_there_is_named(scripted):
    scripted.operate(1, Copy("b", ITERATE))
    with pytest.raises(NetworkError, match="names vector 'gone'; there are b, iterate"):
        scripted.operate(2, Scale("gone", 2.0))


def test_a_message_of_an_unknown_kind_is_refused(scripted):
    with pytest.raises(NetworkError, match="is of an unknown kind"):
        scripted.say("worker-0.0", "push", {})


def test_what_belongs_to_another_epoch_changes_nothing(scripted):
    scripted.roll_back(3, 0)
    for epoch in (1, 2, 4):
        assert scripted.operate(1, Scale(ITERATE, 2.0), epoch=epoch) == []
        assert scripted.commit(0, epoch=epoch) == []
    assert scripted.values == INITIAL_VALUES
    assert not scripted.folder.exists()
    assert scripted.operate(1, L1Norm(ITERATE)) == [scripted.operated(1, 20.0)]


# What it tells


def test_holdings_are_the_parameters(scripted):
    scripted.operate(1, Scale(ITERATE, 2.0), Copy("other", ITERATE))
    held = scripted.shard.slice_states()
    assert [(one.slice, one.value.tolist(), one.state, one.version) for one in held] == [
        (SLICES[0], [4, 6, 8], {}, 1),
        (SLICES[1], [-2, 20], {}, 1),
    ]


def test_statistics_count_what_was_done(scripted):
    scripted.operate(1, Copy("b", ITERATE), Dot("b", "b"))
    scripted.operate(1, Copy("b", ITERATE), Dot("b", "b"))
    scripted.operate(2, Evaluate(ITERATE, "g", 0, 1))
    scripted.point(2)
    scripted.point(2, edge=2)
    scripted.point(1)
    scripted.gradient(2, 0, 0, 1.0, 1.0, 1.0)
    scripted.gradient(1, 0, 0, 1.0, 1.0, edge=2)
    scripted.gradient(2, 0, 0, 1.0, 1.0, edge=2)
    scripted.read(0)
    assert scripted.shard.statistics() == {
        "shard": 1,
        "vectors": 3,
        "operations": 3,
        "round_trips": 3,
        "gradients": 2,
        "late": 2,
        "bytes_in": 8 * (3 + 2 + 2),
        "bytes_out": 8 * (3 + 2 + 3),
    }


def test_nothing_goes_on_unasked(scripted):
    assert (scripted.shard.poll(), scripted.shard.close(), scripted.shard.busy) == ([], [], False)


def test_a_shard_without_slices_answers(tmp_path):
    scripted = ScriptedShard(tmp_path, slices=[])
    assert scripted.operate(1, Dot(ITERATE, ITERATE), Evaluate(ITERATE, "g", 0, 4), MaxNorm("g")) == [
        scripted.operated(1, 0.0, 0.0, 0.0)
    ]
    assert scripted.commit(1) == [("coordinator", "committed", {"epoch": 1, "number": 1}, [])]
    assert scripted.roll_back(2, 1) == [("coordinator", "rolled back", {"epoch": 2}, [])]


def test_first_values_are_not_the_callers_own(scripted):
    scripted.operate(1, Scale(ITERATE, 2.0))
    assert WHOLE[0].tolist() == list(range(8))
