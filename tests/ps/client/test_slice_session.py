"""What a client keeps of its pushes, and what it sends again."""

import torch

from cutset.ps.client.slice_session import SliceSession
from cutset.ps.slices.push_payload import GradientPacker
from cutset.ps.slices.slicing import ParameterSlice
from cutset.runtime.channel.memory_channel import MemoryNetwork


def session_with_pushes(count: int) -> SliceSession:
    session = SliceSession(ParameterSlice(0, 0, 0, 2, 0), GradientPacker(None), 0)
    for step in range(count):
        payload = session.pack(torch.zeros(2), make=MemoryNetwork().channel("worker").empty)
        session.record_push(session.make_push(payload, step, 0))
    return session


def test_pushes_that_were_given_up_are_said_to_be() -> None:
    session = session_with_pushes(5)
    session.release_durable(3)  # as with a disk that is full: its shard never wrote them
    session.on_shard_replaced("shard-0+1")
    again = session.resend_after(1)
    assert [(message.body["number"], message.body.get("gap")) for message in again] == [(4, True), (5, None)]


def test_pushes_that_are_all_there_have_no_gap() -> None:
    session = session_with_pushes(5)
    session.release_durable(3)
    again = session.resend_after(3)
    assert [(message.body["number"], message.body.get("gap")) for message in again] == [(4, None), (5, None)]
