"""A user's task by its name: loaded, captured as two graphs, planned, and compiled into programs.

Nouns: `TaskSpec` (how a task is named), `CapturedTask` (its graphs), `PlanRequest` (the plan that is asked for), and
`Weights` (where trained values come from).
"""
