"""Benchmarks of training: accuracy and speed of all methods beside plain torch, stragglers, and peak memory.

A `Contestant` is one way to train, a `MethodResult` what it came to, a `MethodGoal` what it should reach.
"""
