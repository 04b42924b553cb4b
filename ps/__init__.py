"""Sharded parameter servers and the methods that train through them."""
