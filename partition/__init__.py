"""From a model to a placement: capture a model, give its operators loop nests, cut, lay out, simulate, choose, write.

ir (graphs, loop nests, boxes) -> operators (sharding rules) -> trace (a model's code while it is traced) -> capture
(model to graph), cluster (machines and costs) -> dataflow (a cut, lowered and simulated) -> mincut and layouts (ways to
cut) -> planner (the choice) -> placement (the file). Nothing here reads a clock, and no file but its own.
"""
