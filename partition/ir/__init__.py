"""The intermediate representation: a model as plain data, a `Graph` of operators (`Op`) and tensors (`TensorInfo`).

An `Axis` is an index range that tensors share, a `LoopNest` the loops of an operator over axes, and a `Box` a product
of intervals, one for each loop or axis: what cuts, halos and messages are made of.
"""
