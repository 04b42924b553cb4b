"""Which weights of a run are the best, and when it ends early.

Nouns: Verdicts (what workers are told after an evaluation), BestWeights (the files of the best weights so far).
"""
