"""Checkpoints: what is needed to resume a run, as safetensors files and a checkpoint manifest.

A shard's `Journal` writes `Snapshot`s of its slices while it serves; a `Checkpoint` reads them for any cut of a model.
"""
