"""What leaves a segment and what comes back to it is known by position; readers of a piece by where they add up."""

import pytest
import torch
from cutting import finest_cut, subject
from three_readers import Branches, loss_of

from cutset.partition.capture.export import capture
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.box import sizes
from cutset.partition.ir.graph import Graph
from cutset.runtime.worker.prepared_segment import (
    PieceReaders,
    Readers,
    SegmentEnds,
    cut_box,
    list_made,
    take_frames,
    with_gradient,
)
from cutset.runtime.worker.program import programs


def halves(graph: Graph) -> Cut:
    """Every operator on machine 0, but for `exp` on machine 1."""
    return Cut(2, {op.name: [(op.nest.box, int(op.name.startswith("exp")))] for op in graph.ops})


def test_readers_of_a_piece_are_counted_by_where_they_add_up() -> None:
    graph, _ = capture(Branches(), loss_of, [torch.randn(3, 5)])
    program = programs(lower_cut(graph, halves(graph)), training=True)[0]
    segment = program.segments[0]
    linear = next(step for step in segment.steps if "linear" in step.op)
    readers = PieceReaders(program, segment).of(linear.makes[0])
    # In this segment two operators read it whole; outside, machine 1 does.
    assert (readers.whole, readers.others, readers.opaque) == (2, 1, False)
    assert not readers.may_share_a_node
    assert Readers(whole=3).may_share_a_node
    assert Readers(whole=1, others=1).may_share_a_node
    assert not Readers(whole=2, opaque=True).may_share_a_node


def test_a_part_of_a_piece_is_cut_out_and_all_of_it_is_not() -> None:
    piece = torch.arange(12.0).reshape(3, 4)
    assert cut_box(((2, 5), (0, 4)), ((2, 5), (0, 4))) is None
    where = cut_box(((3, 5), (1, 2)), ((2, 5), (0, 4)))
    whole, part = take_frames([(7, None), (7, where)], {7: piece.requires_grad_()})
    assert whole.shape == (3, 4)
    assert not whole.requires_grad
    assert part.tolist() == [[5.0], [9.0]]


@pytest.mark.parametrize("name", ["conv", "transformer"])
def test_ends_of_a_segment_are_those_of_its_program(name: str) -> None:
    graph = subject(name).graph
    for program in programs(lower_cut(graph, finest_cut(graph, 2)), training=True):
        for segment in program.segments:
            made, ends = list_made(segment), SegmentEnds(program, segment)
            assert [made[i] for _, i in ends.keeps] == list(segment.keeps)
            assert [[made[i] for i, _ in frames] for frames in ends.frames] == [list(e.pieces) for e in segment.sends]
            for edge, (number, parts) in zip(segment.sends, ends.gradients, strict=True):
                assert number == edge.edge
                assert [made[i] for i, _, _ in parts] == [edge.pieces[i] for i in with_gradient(program, edge)]
                assert all(shape == sizes(program.pieces[made[i]].box) for i, shape, _ in parts)
