"""The operator table: one row per ATen operator says how its loops run over axes, and how to run one box of it.

An operator without a row is opaque: one block, always correct. Coverage grows by adding rows; each is tested by running
random boxes against the whole operator (tests/partition/test_rows_*.py). Importing a file of rows enters them.
"""

from . import (
    reduction as rows_along,
    attention as rows_attention,
    contraction as rows_contraction,
    rows_dropout,
    elementwise as rows_elementwise,
    indexing as rows_indexing,
    split_reductions as rows_joined,
    loss as rows_loss,
    creation as rows_making,
    movement as rows_moving,
    normalisation as rows_normalisation,
    pooling as rows_pooling,
    rows_reduction,
    resampling as rows_resampling,
    convolution as rows_window,
)
from .sharding_rule import TABLE, Row

__all__ = ["FILES_OF_ROWS", "TABLE", "find"]

FILES_OF_ROWS = (
    rows_elementwise,
    rows_moving,
    rows_indexing,
    rows_making,
    rows_contraction,
    rows_window,
    rows_pooling,
    rows_resampling,
    rows_normalisation,
    rows_dropout,
    rows_attention,
    rows_reduction,
    rows_along,
    rows_joined,
    rows_loss,
)


def find(target: str) -> Row | None:
    """The row of "aten.linear.default"."""
    return TABLE.get(target.rsplit(".", 1)[0])
