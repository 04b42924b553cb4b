"""Who computes which batches: in turns, or as the launcher leases them.

Nouns: BatchAssignment (a worker's side), LeaseServer (the launcher's side), BatchLeases (the pure core of it),
ScaleRequests (for more or fewer replicas).
"""
