"""Deferred initialisation: a model is built without values, and its weights are drawn later, bit for bit the same.

An `InitRecorder` writes down every operator as an `InitEvent`; a `DeferredModel` replays them, one memory after the
other, with torch's generator in the states that it would have been in.
"""
