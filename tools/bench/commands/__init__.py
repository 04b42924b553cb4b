"""The commands of `cutset bench`, one a module; bench.py is the group.

A command reads its options, runs the measurement of its package (tools/bench/*), and shows the `BenchTable`s.
"""
