"""Planning: a `PlanningProblem` has `Candidate`s, each is scored by simulation, and the best `ScoredPlan` wins.

plan.py has these as data, candidates.py proposes cuts, local_search.py improves the best, pins.py keeps operators where
the user wants them, and planner.py chooses.
"""
