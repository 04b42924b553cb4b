"""The parameter server: the shards' end of the protocol.

A `Shard` has one `SliceServer` per slice, whose `PendingFetches`, `GradientAggregator` and `StepClocks` decide when
fetches are answered and pushes applied; `Durability` reports what its journal contains. `Serving` is the configuration.
"""
