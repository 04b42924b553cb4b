"""Cutting as graph partitioning: operators split into `Blocks` along `CutAxes`, a graph or hypergraph of these blocks.

METIS cuts the `CsrGraph`, with a constraint for each level if asked, Mt-KaHyPar the `BlockHypergraph`. Views stay
with their anchors; `reduction_owners` says who adds partial sums.
"""
