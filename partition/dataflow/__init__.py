"""Dataflow."""
