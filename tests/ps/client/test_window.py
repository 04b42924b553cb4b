"""What may travel at once grows with the shards and their slices, within bounds."""

import pytest
import torch

from cutset.ps.client.window import MAX_BYTES, MIN_BYTES, choose_window_bytes
from cutset.ps.slices.slicing import slice_parameters

MIB = 1 << 20


@pytest.mark.parametrize(
    ("shards", "slice_bytes", "window"),
    [
        (0, 0, MIN_BYTES),
        (1, 1, MIN_BYTES),
        (1, 4 * MIB, 12 * MIB),
        (2, 4 * MIB, 16 * MIB),
        (3, 4 * MIB, 24 * MIB),
        (1, 16 * MIB, MAX_BYTES),
        (100, 4 * MIB, MAX_BYTES),
    ],
)
def test_a_window_has_room_for_the_slices_of_every_shard_within_bounds(
    shards: int, slice_bytes: int, window: int
) -> None:
    assert choose_window_bytes(shards, slice_bytes) == window


def test_three_of_the_largest_slices_of_dense_parameters_fit() -> None:
    largest = max(piece.size for piece in slice_parameters([10**8], 1))
    assert 3 * largest * torch.float32.itemsize <= MIN_BYTES
