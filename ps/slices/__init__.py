"""Slices: the unit in which parameters are sharded, sent and updated.

A `ParameterSlice` is a range of a machine's flat buffer on one shard; `SliceState` has its values and optimizer state.
A push carries a `PushPayload` (gradient compression) or `SparseRows`; a `Region` is a box of a parameter in a buffer.
"""
