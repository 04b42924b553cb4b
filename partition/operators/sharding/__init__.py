"""What a sharding rule is made of: its `Signature`, its `CostClass` and the code that runs one box of the operator.

A `ShardingRule` maps a `Site`, a call in the traced model, to a `Signature` with one label for each dimension, as
einsum has them. A `Call` is one box of it about to run; a `Summary` combines the parts of a non-additive reduction.
"""
