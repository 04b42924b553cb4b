"""The operator table: one row per ATen operator says how its loops run over axes, and how to run one box of it.

An operator without a row is opaque: one block, always correct. Coverage grows by adding rows; each is tested by running
random boxes against the whole operator (tests/partition/test_rows_*.py). Importing a file of rows enters them.
"""

from . import (
    rows_along,
    rows_attention,
    rows_contraction,
    rows_dropout,
    rows_elementwise,
    rows_indexing,
    rows_joined,
    rows_loss,
    rows_making,
    rows_moving,
    rows_normalisation,
    rows_pooling,
    rows_reduction,
    rows_resampling,
    rows_window,
)
from .row import TABLE, Row

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
