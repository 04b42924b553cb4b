"""Training steps of a cut model: a `Worker` runs the `Program` of one machine and exchanges tensors with the others.

`SizedWorkers` have a program for each size of a batch. `FlatParameters` and `FlatGradient` hold the values of one
machine as flat buffers; an `UncutWorker` trains a whole model as plain torch does.
"""
