"""A shard of vectors gives workers the points to compute gradients at, and says where nobody wants them."""

import pytest
import torch
from scripted_shard import ScriptedShard, summed
from scripted_shard import scripted as scripted

from cutset.errors import NetworkError
from cutset.ps.sandblaster.vector_ops import ITERATE, Combine, Copy, Evaluate, Scale
from cutset.runtime.channel.message import Message


def test_points_are_those_of_the_evaluation(scripted):
    scripted.operate(1, Combine("trial", [(2.0, ITERATE)]), Evaluate("trial", "g", 0, 1), Evaluate(ITERATE, "h", 1, 2))
    assert scripted.point(1, 1) == [("worker-0.0", "point", {}, [[4, 6, 8]])]
    assert scripted.point(1, 1, edge=2, sender="worker-0.2") == [("worker-0.2", "point", {}, [[-2, 20]])]
    assert scripted.point(1, 2, edge=2) == [("worker-0.0", "point", {}, [[-1, 10]])]


def test_an_answer_has_the_step_and_the_slice_of_its_question(scripted):
    scripted.operate(1, Evaluate(ITERATE, "g", 0, 1))
    body = {"epoch": 1, "number": 1, "place": 0, "level": 0, "index": 0}
    for kind, answer, tensors in (
        ("point", "point", ()),
        ("read", "values", ()),
        ("gradient", "summed", (torch.zeros(2, dtype=torch.float64),)),
    ):
        ((to, message),) = scripted.shard.handle(Message(kind, 17, 0, 2, body, tensors, "worker-3.2"))
        assert (to, message.kind, message.step, message.edge) == ("worker-3.2", answer, 17, 2)
        assert message.borrowed == bool(message.tensors)
    stale = scripted.shard.handle(Message("point", 18, 0, 2, body | {"number": 0}, (), "worker-3.2"))
    assert [(to, m.step, m.edge, m.body) for to, m in stale] == [("worker-3.2", 18, 2, {"stale": True})]


def test_points_that_nobody_wants_any_more_are_stale(scripted):
    stale = [("worker-0.0", "point", {"stale": True}, [])]
    scripted.operate(1, Evaluate(ITERATE, "g", 0, 1))
    assert scripted.point(0) == stale
    for edge, count in ((0, 3), (2, 2)):
        scripted.gradient(1, 0, 0, *[1.0] * count, edge=edge)
    scripted.operate(2, Scale(ITERATE, 1.0))
    assert scripted.point(1) == stale
    scripted.roll_back(5, 0)
    for epoch in (1, 4):
        assert scripted.point(7, epoch=epoch) == stale


def test_a_point_of_what_is_done_can_be_had_until_the_next_batch(scripted):
    """A worker may be lost with the loss that it knows; another then needs the point again."""
    scripted.operate(1, Copy("trial", ITERATE), Evaluate("trial", "g", 0, 1), Scale(ITERATE, 3.0))
    assert scripted.gradient(1, 0, 0, 3.0, 3.0, 3.0, place=1) == [summed()]
    assert scripted.gradient(1, 0, 0, 3.0, 3.0, place=1, edge=2) == [summed(), scripted.operated(1, 0.0)]
    assert scripted.point(1, 1) == [("worker-0.0", "point", {}, [[2, 3, 4]])]
    assert scripted.gradient(1, 0, 0, 9.0, 9.0, 9.0, place=1) == [summed()]
    assert scripted.vectors[0]["g"].tolist() == [1, 1, 1]


def test_a_point_that_is_to_come_is_waited_for(scripted):
    """Of a later batch, of a later place in the batch, and of a later epoch."""
    assert scripted.point(1, 1, sender="early") == []
    assert scripted.point(1, 3, edge=2, sender="late") == []
    assert scripted.point(2, 0, sender="next") == []
    assert scripted.point(1, 0, epoch=2, sender="far") == []
    batch = [Scale(ITERATE, 2.0), Evaluate(ITERATE, "g", 0, 1), Scale(ITERATE, 2.0), Evaluate(ITERATE, "h", 0, 1)]
    assert scripted.operate(1, *batch) == [("early", "point", {}, [[4, 6, 8]])]
    scripted.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=1)
    found = scripted.gradient(1, 0, 0, 1.0, 1.0, place=1, edge=2)
    assert found == [summed(), ("late", "point", {}, [[-4, 40]])]
    scripted.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=3)
    assert scripted.gradient(1, 0, 0, 1.0, 1.0, place=3, edge=2) == [summed(), scripted.operated(1, 0.0, 0.0)]
    assert scripted.operate(2, Evaluate(ITERATE, "g", 0, 1)) == [("next", "point", {}, [[8, 12, 16]])]
    assert scripted.roll_back(2, 0) == [("coordinator", "rolled back", {"epoch": 2}, [])]
    assert scripted.operate(1, Evaluate(ITERATE, "g", 0, 1)) == [("far", "point", {}, [[2, 3, 4]])]


def test_a_point_that_was_waited_for_may_have_become_stale(scripted):
    assert scripted.point(4, 0, sender="worker-7.0") == []
    rolled_back = ("coordinator", "rolled back", {"epoch": 2}, [])
    assert scripted.roll_back(2, 0) == [rolled_back, ("worker-7.0", "point", {"stale": True}, [])]


def test_a_point_of_an_operation_without_one_is_refused(scripted):
    scripted.operate(1, Scale(ITERATE, 1.0), Evaluate(ITERATE, "g", 0, 1))
    with pytest.raises(NetworkError, match="is of operation 0: Scale"):
        scripted.point(1, 0)
    assert scripted.point(1, 2) == [("worker-0.0", "point", {"stale": True}, [])]


def test_who_reads_before_anything_is_there_waits(tmp_path):
    scripted = ScriptedShard(tmp_path, epoch=0)
    assert scripted.read(0) == []
    assert scripted.point(1, epoch=1, sender="worker-1.0") == []
    assert scripted.roll_back(1, 0) == [
        ("coordinator", "rolled back", {"epoch": 1}, []),
        ("worker-0.0", "values", {}, [[2, 3, 4]]),
    ]
    assert scripted.operate(1, Evaluate(ITERATE, "g", 0, 1)) == [("worker-1.0", "point", {}, [[2, 3, 4]])]
