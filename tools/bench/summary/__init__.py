"""All benchmarks on one page (`cutset bench all`), and their ratios beside kept ones (`cutset bench check`).

A `Benchmark` returns `PeerComparison`s; a `BenchmarkResult` is what came of one, on which machine.
"""
