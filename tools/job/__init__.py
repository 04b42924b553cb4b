"""From the options of a training run to a job that can start: load, capture, plan, configure.

Nouns: `RunConfig` (all options, declared once), `ReplicaPlan` (how a replica computes), `Job` (a run that is ready to
start), and `TrainingSpec`, `WorkerSpec`, `ShardSpec`, `BaselineSpec` (what its processes are told).
"""
