"""Deferred init."""
