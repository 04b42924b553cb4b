"""Published graphs as data, and the readers of their file formats: dnn-partitioning, PipeDream, METIS and hMETIS.

A `LayerGraph` has layers with times and sizes, a `Hypergraph` weighted vertices and nets; a `GraphFile` is either, and
a `SourceLine` names the place of an error.
"""
