"""A `Placement` is the file of a plan: boxes and machines of every operator, predictions, and the other candidates.

from_plan.py makes it of a planning result, verdict.py puts that into words, to_cut.py turns it back into a cut, checked
against the model.
"""
