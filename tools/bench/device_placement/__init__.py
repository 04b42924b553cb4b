"""Plans for graphs that others published, by their objectives: max load, pipeline stages, cut of a hypergraph.

`LayerGroups` are layers that share a device; a `LayerPlacement` says where layers run; a downset holds all that comes
before its groups, and a `DownsetChain` is a contiguous placement.
"""
