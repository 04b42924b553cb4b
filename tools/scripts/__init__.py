"""A user's own script as a replica: it keeps its loop, and its gradients go to the shards.

Nouns: ScriptRun (what the script has in hand), ScriptWorker, SharedOptimizer, ModelDescription.
"""
