"""A `Cut` says which machine runs which boxes of every operator; `lower_cut` makes it a `Dataflow`.

A dataflow has pieces of tensors, instructions, and the edges between segments; `simulate` predicts the time of a step
of it and `peak_memory` the memory, with recomputation where that is too small.
"""
