"""Weights and optimizer state in the forms of others: torch's files, its distributed checkpoints, the Hub's folders.

Nouns: TrainedModel (what is exchanged), Form (torch, dcp, hf).
"""
