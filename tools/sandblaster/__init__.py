"""Training by Sandblaster: `run_sandblaster` starts a coordinator, vector shards and gradient workers.

Nouns: SandblasterSupervisor, which restarts lost roles; the roles themselves (roles.py), made from their specs; and
PortionData, the samples of each portion. The protocol and the optimizers are in ps/sandblaster.
"""
