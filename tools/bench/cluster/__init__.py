"""Benchmarks on an emulated cluster: lock-step and micro-batches, predicted and measured, and broken links.

An `EmulatedCluster` is made of network name spaces with limited links; a `ClusterExperiment` says what to run there,
a `Variant` is one way to run a step, and a `ClusterResult` has what was measured.
"""
