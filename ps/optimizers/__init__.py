"""Optimizers: how a shard changes parameters by a gradient.

An `Optimizer` is plain data that applies an `Update` to flat tensors; the registry has all of them by name. They match
torch.optim or their papers, element by element, so that slices and sparse rows can be updated apart.
"""
