"""Training by a parameter-server method: `run_replicas` starts shards and workers, and a supervisor follows them.

Nouns: TrainingSupervisor, ShardSupervisor and RestartLog; CheckpointSets and RecoveryPoints (what it can go back to);
ReplicaMembership and ScaleRequests.
"""
