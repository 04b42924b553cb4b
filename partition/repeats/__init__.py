"""Repeated layers are traced once: a call that is like an earlier one is entered into a trace without being run.

Nouns: `CallSignature` (what decides what a call does), `WatchedCall` (what it reads and writes in Python) and
`GraphSegment` (the nodes that it adds to a trace).
"""
