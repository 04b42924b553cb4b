"""How many bytes of pushes a client keeps that are not durable on their shards; with more, it waits for their journals.

A journal takes as long as several pushes, so the fewer there are, the faster is a client that pushes much; but what it
keeps is memory of its machine.
"""

from ...runtime.channel.shared_memory import ARENA_BYTES

REPLAY_BYTES = 64 << 20  # at least
MAX_REPLAY_BYTES = ARENA_BYTES // 2  # as pushes to a shard of the same host lie in its arena
DONATED = 2  # times as many bytes of whole gradients are kept because one slice of them is; beyond, slices are copied
_PART_OF_MEMORY = 32


def choose_replay_bytes(memory_bytes: int) -> int:
    """Return the limit on a machine with so much memory."""
    return min(max(REPLAY_BYTES, memory_bytes // _PART_OF_MEMORY), MAX_REPLAY_BYTES)
