"""Methods of data parallelism, one a file: how replicas train together.

A `Method` is plain data, its fields are its options. Its `train` is the loop of every worker, made of what a
`TrainingLoop` gives it: steps with their batches, gradients, the client of the shards, and the user's optimizer.
"""
