"""Benchmarks: each sub-package measures one thing, and commands/ has a command for each.

A measurement returns results (frozen dataclasses); `tabulate` makes a `BenchTable` of them, which prints itself and is
the `--json` output.
"""
