"""Readers of data sets: each makes `Data` from the user's files (IDX, LIBSVM, text), or from a seed (synthetic).

A malformed file raises a `TaskError` that names the place, what was expected, and the fix.
"""
