"""Benchmarks of moving and applying parameters: channels, parameter servers and optimizers.

A `Transport` is one end of a way to send tensors between two processes; a `Handshake` is what both ends agree on first.
"""
