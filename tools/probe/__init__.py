"""Measures this machine and steps on it: operators, messages and memory for the cost model, and steps of cut models.

A `ProbeResult` has the `Cluster` that was fitted to `OperatorSample`s and `ChainSample`s; `StepTimes` are measured
steps; a `ProcessPlacement` says where the processes run.
"""
