"""Benchmarks: what a real step takes, and how far the prediction of it is off."""
