"""Mincut."""
