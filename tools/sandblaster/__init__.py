"""Sandblaster."""
