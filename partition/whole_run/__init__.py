"""The plan of a whole run: how many replicas train, of how many machines each, beside their parameter shards.

`Exchange` (what replicas send to shards), `RunSplit` (replicas x machines and its predicted speed), `plan_run`.
"""
