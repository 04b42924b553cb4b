"""Benchmarks of the planner: our plans and others', predicted and measured steps, and DistBelief's figure 3.

A `PlanSubject` is a graph to plan, a `PlanComparison` our plan of it and its peers' plans; `AssumedMachines` are the
machines that a figure is simulated on.
"""
