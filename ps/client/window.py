"""How many bytes may travel between a client and its shards at once, in each direction.

What is on its way lies in memory of both ends. With little of it, the same memory is used again while the caches still
have it, and shards of the same host apply pushes faster (`cutset bench ps`); with too little, shards and links idle.
"""

MIN_BYTES = 12 << 20  # three of the largest slices of dense parameters in float32
SLICES_PER_SHARD = 2  # slices travel shard by shard, so all shards are busy at once where none has more than these
MAX_BYTES = 32 << 20  # so that neither end ever holds a second copy of everything


def choose_window_bytes(shards: int, slice_bytes: int) -> int:
    """Return the limit of a client of so many shards, whose largest slice has `slice_bytes`."""
    return min(max(MIN_BYTES, shards * SLICES_PER_SHARD * slice_bytes), MAX_BYTES)
