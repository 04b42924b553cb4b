"""Integer weights for partitioners: scaled, whatever they are, to a bounded ratio and a total that cannot overflow."""

import math

import numpy as np

from .csr_graph import Floats
from ..ir.box import Ints

WEIGHT_MAX = 1_000_000  # ratio of weights beyond which METIS loses its way
TOTAL_MAX = 2**31 - 1


def integers(values: Floats, *, least: int = 1, total: int = TOTAL_MAX) -> Ints:
    """Weights in proportion to `values`, none below one; `least` for values of zero. Their sum is at most `total`."""
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    part = values / (float(values.max()) or 1.0)
    scale = min(WEIGHT_MAX, (total - len(values)) / max(1.0, math.fsum(part)))
    return np.where(values > 0, np.maximum(1, np.floor(part * scale)), least).astype(np.int64)
