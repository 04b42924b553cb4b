"""What a model's code does while it is traced: where its gradients stop, and what a step leaves behind for the next.

Nouns: `ValueNumbers` (which values of two steps are computed alike), `Change` (an attribute that a step changes) and
`RepeatedSteps` (whether all steps compute the same).
"""
