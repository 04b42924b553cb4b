"""Evaluation of trained weights: `evaluate` runs a checkpoint on a split, cut or uncut, as `cutset eval` does.

accuracy.py counts correct answers, also for tests while training; word_vectors.py scores trained word vectors.
"""
