"""Boxes are put together from pieces, and gradients taken apart, as slice assignment would do it."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cutset.partition.ir.box import Box, intersect, relative, sizes, slices, split_evenly
from cutset.partition.operators.gather import Assembly, prepare_gather, prepare_sum

SHAPE = (5, 4)


def gather(box: Box, held: list[tuple[Box, Tensor]]) -> Tensor:
    return assembled(prepare_gather(box, [piece for piece, _ in held]), held)


def add_up(box: Box, held: list[tuple[Box, Tensor]]) -> Tensor:
    return assembled(prepare_sum(box, [piece for piece, _ in held]), held)


def assembled(assemble: Assembly, held: list[tuple[Box, Tensor]]) -> Tensor:
    """What is prepared serves again and again."""
    tensors = [tensor for _, tensor in held]
    first, second = assemble(tensors), assemble(tensors)
    assert torch.equal(first, second)
    return second


def pieces(seed: int, boxes: list[Box]) -> list[tuple[Box, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.randn(sizes(box), generator=generator, dtype=torch.float64) for box in boxes)
    return [(box, draw.requires_grad_()) for box, draw in zip(boxes, draws, strict=True)]


def grid(rows: int, columns: int) -> list[Box]:
    return [(row, column) for row in split_evenly(SHAPE[0], rows) for column in split_evenly(SHAPE[1], columns)]


def naive(box: Box, held: list[tuple[Box, Tensor]]) -> Tensor:
    """The sum of all pieces on a canvas, cut to `box`."""
    canvas = torch.zeros(SHAPE, dtype=torch.float64)
    for piece, tensor in held:
        common = intersect(piece, box)
        if common is not None:
            padded = torch.zeros(SHAPE, dtype=torch.float64)
            padded[slices(common)] = 1.0
            spread = torch.zeros(SHAPE, dtype=torch.float64)
            spread[slices(common)] = tensor[slices(relative(common, piece))]
            canvas = canvas + spread
    return canvas[slices(box)]


def assert_same_with_gradients(found: Tensor, expected: Tensor, held: list[tuple[Box, Tensor]]) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)
    weight = torch.arange(1.0, found.numel() + 1, dtype=torch.float64).reshape(found.shape)
    tensors = [tensor for _, tensor in held]
    options = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    ours = torch.autograd.grad((found * weight).sum(), tensors, **options)
    theirs = torch.autograd.grad((expected * weight).sum(), tensors, **options)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


intervals = [st.tuples(st.integers(0, n), st.integers(0, n)).filter(lambda i: i[0] < i[1]) for n in SHAPE]
boxes = st.tuples(*intervals)


@settings(max_examples=40)
@given(box=boxes, rows=st.integers(1, 3), columns=st.integers(1, 3))
def test_gather_is_the_box_of_the_whole(box: Box, rows: int, columns: int) -> None:
    held = [item for item in pieces(0, grid(rows, columns)) if intersect(item[0], box) is not None]
    assert_same_with_gradients(gather(box, held), naive(box, held), held)


@settings(max_examples=40)
@given(box=boxes, parts=st.lists(boxes, min_size=1, max_size=4))
def test_add_up_adds_each_piece_where_it_lies(box: Box, parts: list[Box]) -> None:
    held = [item for item in pieces(1, parts) if intersect(item[0], box) is not None]
    if held:
        assert_same_with_gradients(add_up(box, held), naive(box, held), held)


def test_a_box_of_one_piece_is_a_view() -> None:
    whole = torch.arange(20.0).reshape(SHAPE)
    held = [(((0, 5), (0, 4)), whole)]
    part = gather(((1, 3), (0, 4)), held)
    assert part.data_ptr() == whole[1].data_ptr()
    assert gather(((0, 5), (0, 4)), held) is whole


def test_scalars_add_up() -> None:
    assert add_up((), [((), torch.tensor(1.0)), ((), torch.tensor(2.5))]) == 3.5


def test_whole_numbers_are_put_together_too() -> None:
    held = [(((0, 2),), torch.tensor([1, 2])), (((2, 3),), torch.tensor([7]))]
    assert gather(((1, 3),), held).tolist() == [2, 7]


def test_pieces_one_behind_the_other_are_joined_without_a_copy_of_their_layout() -> None:
    whole = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    box = ((0, 2), (0, 3), (0, 4), (0, 5))
    halves = [((0, 2), (0, 3), rows, (0, 5)) for rows in ((0, 1), (1, 4))]
    held = [(half, whole[slices(half)].contiguous(memory_format=torch.channels_last)) for half in halves]
    joined = gather(box, held)
    assert torch.equal(joined, whole)
    assert joined.is_contiguous()
    mixed = gather(box, held[::-1])  # not in order: put in place piece by piece
    assert torch.equal(mixed, whole)
    plain = [(half, whole[slices(half)].clone().requires_grad_()) for half in halves]
    assert type(gather(box, plain).grad_fn).__name__ == "CatBackward0"
