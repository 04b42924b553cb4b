"""Readers of data sets: each makes `Data` from the user's files (IDX, LIBSVM, text), or from a seed (synthetic).

A file that is wrong ends in a `TaskError` that names the place, what was expected, and what to do.
"""
