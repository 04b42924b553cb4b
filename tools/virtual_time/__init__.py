"""Training in virtual time: the real methods, clients and shards, driven by a clock that jumps from event to event.

Its nouns: `World` (the clock and its tasks), `VirtualNetwork`, `ShardQueue`, `SharedModel`, `VirtualReplica` and
`VirtualRun`.
"""
