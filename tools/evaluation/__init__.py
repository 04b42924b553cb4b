"""Evaluation of trained weights: `evaluate` runs a checkpoint on a split, cut or uncut, as `cutset eval` does.

What is measured on samples is in tools/task/scores.py; word_vectors.py scores trained word vectors.
"""
