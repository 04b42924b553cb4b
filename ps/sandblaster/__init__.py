"""Batch methods over shards and replicas: Sandblaster (Dean et al., NIPS 2012, section 4.2).

A solver (L-BFGS, OWL-QN, gradient descent, conjugate gradients) requests batches of operations on named vectors and
sees scalars alone. The `Coordinator` has `VectorShard`s carry them out, and `GradientWorker`s evaluate portions of the
samples, which a `WorkQueue` hands out. A `RecoveryLog` has the answers, from which a run goes on after any loss.
"""
