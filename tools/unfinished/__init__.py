"""Runs that ended early: a checkpoint of what their shards had saved."""
