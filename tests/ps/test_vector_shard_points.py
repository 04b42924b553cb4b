"""A shard of vectors gives workers the points to compute gradients at, and says where nobody wants them."""

import pytest
import torch
from told_shard import Told, summed
from told_shard import told as told

from cutset.errors import NetworkError
from cutset.ps.sandblaster.vector_ops import AT, Combine, Copy, Evaluate, Scale
from cutset.runtime.channel.message import Message


def test_points_are_those_of_the_evaluation(told):
    told.operate(1, Combine("trial", [(2.0, AT)]), Evaluate("trial", "g", 0, 1), Evaluate(AT, "h", 1, 2))
    assert told.point(1, 1) == [("worker-0.0", "point", {}, [[4, 6, 8]])]
    assert told.point(1, 1, edge=2, sender="worker-0.2") == [("worker-0.2", "point", {}, [[-2, 20]])]
    assert told.point(1, 2, edge=2) == [("worker-0.0", "point", {}, [[-1, 10]])]


def test_an_answer_has_the_step_and_the_slice_of_its_question(told):
    told.operate(1, Evaluate(AT, "g", 0, 1))
    body = {"epoch": 1, "number": 1, "place": 0, "level": 0, "index": 0}
    for kind, answer, tensors in (
        ("point", "point", ()),
        ("read", "values", ()),
        ("gradient", "summed", (torch.zeros(2, dtype=torch.float64),)),
    ):
        ((to, message),) = told.shard.handle(Message(kind, 17, 0, 2, body, tensors, "worker-3.2"))
        assert (to, message.kind, message.step, message.edge) == ("worker-3.2", answer, 17, 2)
        assert message.borrowed == bool(message.tensors)
    stale = told.shard.handle(Message("point", 18, 0, 2, body | {"number": 0}, (), "worker-3.2"))
    assert [(to, m.step, m.edge, m.body) for to, m in stale] == [("worker-3.2", 18, 2, {"stale": True})]


def test_points_that_nobody_wants_any_more_are_stale(told):
    stale = [("worker-0.0", "point", {"stale": True}, [])]
    told.operate(1, Evaluate(AT, "g", 0, 1))
    assert told.point(0) == stale
    for edge, count in ((0, 3), (2, 2)):
        told.gradient(1, 0, 0, *[1.0] * count, edge=edge)
    told.operate(2, Scale(AT, 1.0))
    assert told.point(1) == stale
    told.back(5, 0)
    for epoch in (1, 4):
        assert told.point(7, epoch=epoch) == stale


def test_a_point_of_what_is_done_can_be_had_until_the_next_batch(told):
    """Whoever has told a loss may be lost with it; another then needs the point again."""
    told.operate(1, Copy("trial", AT), Evaluate("trial", "g", 0, 1), Scale(AT, 3.0))
    assert told.gradient(1, 0, 0, 3.0, 3.0, 3.0, place=1) == [summed()]
    assert told.gradient(1, 0, 0, 3.0, 3.0, place=1, edge=2) == [summed(), told.operated(1, 0.0)]
    assert told.point(1, 1) == [("worker-0.0", "point", {}, [[2, 3, 4]])]
    assert told.gradient(1, 0, 0, 9.0, 9.0, 9.0, place=1) == [summed()]
    assert told.vectors[0]["g"].tolist() == [1, 1, 1]


def test_a_point_that_is_to_come_is_waited_for(told):
    """Of a later batch, of a later place in the batch, and of a later epoch."""
    assert told.point(1, 1, sender="early") == []
    assert told.point(1, 3, edge=2, sender="late") == []
    assert told.point(2, 0, sender="next") == []
    assert told.point(1, 0, epoch=2, sender="far") == []
    batch = [Scale(AT, 2.0), Evaluate(AT, "g", 0, 1), Scale(AT, 2.0), Evaluate(AT, "h", 0, 1)]
    assert told.operate(1, *batch) == [("early", "point", {}, [[4, 6, 8]])]
    told.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=1)
    found = told.gradient(1, 0, 0, 1.0, 1.0, place=1, edge=2)
    assert found == [summed(), ("late", "point", {}, [[-4, 40]])]
    told.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=3)
    assert told.gradient(1, 0, 0, 1.0, 1.0, place=3, edge=2) == [summed(), told.operated(1, 0.0, 0.0)]
    assert told.operate(2, Evaluate(AT, "g", 0, 1)) == [("next", "point", {}, [[8, 12, 16]])]
    assert told.back(2, 0) == [("coordinator", "rolled back", {"epoch": 2}, [])]
    assert told.operate(1, Evaluate(AT, "g", 0, 1)) == [("far", "point", {}, [[2, 3, 4]])]


def test_a_point_that_was_waited_for_may_have_become_stale(told):
    assert told.point(4, 0, sender="worker-7.0") == []
    rolled_back = ("coordinator", "rolled back", {"epoch": 2}, [])
    assert told.back(2, 0) == [rolled_back, ("worker-7.0", "point", {"stale": True}, [])]


def test_a_point_of_an_operation_without_one_is_refused(told):
    told.operate(1, Scale(AT, 1.0), Evaluate(AT, "g", 0, 1))
    with pytest.raises(NetworkError, match="is of operation 0: Scale"):
        told.point(1, 0)
    assert told.point(1, 2) == [("worker-0.0", "point", {"stale": True}, [])]


def test_who_reads_before_anything_is_there_waits(tmp_path):
    told = Told(tmp_path, epoch=0)
    assert told.read(0) == []
    assert told.point(1, epoch=1, sender="worker-1.0") == []
    assert told.back(1, 0) == [
        ("coordinator", "rolled back", {"epoch": 1}, []),
        ("worker-0.0", "values", {}, [[2, 3, 4]]),
    ]
    assert told.operate(1, Evaluate(AT, "g", 0, 1)) == [("worker-1.0", "point", {}, [[2, 3, 4]])]
