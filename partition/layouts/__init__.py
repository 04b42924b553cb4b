"""Cutting as layout search: a `Layout` says which loop of an operator each dimension of a `DeviceMesh` cuts.

A `LayoutSpace` has all layouts of an operator; `search_layouts` chooses one for each so that compute and resharding are
minimal together. standard_cuts.py has the regular cuts of other systems.
"""
