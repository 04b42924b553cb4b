"""How many bytes of pushes a client keeps that are not durable on their shards; with more, it waits for their journals.

A journal takes as long as several pushes, so the fewer there are, the faster is a client that pushes much; but what it
keeps is memory of its machine, and takes time to fill at first. So a client asks for journals early, and later where
they take longer.
"""

from ...runtime.channel.shared_memory import ARENA_BYTES

REPLAY_BYTES = 64 << 20  # at least, and where journals are fast enough no more
MAX_REPLAY_BYTES = ARENA_BYTES // 2  # as pushes to a shard of the same host lie in its arena
# Of whole gradients kept because one slice of them is, or the limit if that is more; beyond, slices are copied.
DONATED_BYTES = 128 << 20
_PART_OF_MEMORY = 16  # that all clients of a host may keep


def choose_replay_bytes(memory_bytes: int, clients: int) -> int:
    """Return the limit of each of several clients that may share a machine with so much memory."""
    return min(max(REPLAY_BYTES, memory_bytes // _PART_OF_MEMORY // clients), MAX_REPLAY_BYTES)
