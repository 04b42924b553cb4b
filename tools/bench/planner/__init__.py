"""Planner."""
