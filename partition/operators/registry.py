"""The operator table: for each ATen operator the sharding rule that says how it is cut and how one box of it is run.

Without a written rule one is looked for by running the operator (partition/discovery); without any it is opaque: one
box, which is always correct. Coverage grows by adding rules; each is tested by running random boxes against the whole
operator (tests/partition/operators/rules). Importing a module of rules enters them.
"""

from .rules import (
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    indexing,
    loss,
    movement,
    normalisation,
    pooling,
    recurrent,
    reduction,
    resampling,
    split_reductions,
)
from .sharding.sharding_rule import TABLE, ShardingRule

__all__ = ["RULE_MODULES", "TABLE", "find_rule"]

RULE_MODULES = (
    elementwise,
    movement,
    indexing,
    creation,
    contraction,
    convolution,
    pooling,
    resampling,
    normalisation,
    attention,
    reduction,
    split_reductions,
    loss,
    recurrent,
)


def find_rule(target: str) -> ShardingRule | None:
    """Return the rule of an operator such as "aten.linear.default", or None where it has none."""
    return TABLE.get(target.rsplit(".", 1)[0])
