"""The pictures, each a function from a placement or a result to an SVG; one import for all of them."""

from .bars import load_bars
from .curves import accuracy_curves, loss_curves
from .cutmap import cut_map
from .gantt import gantt
from .heat import staleness_heat
from .histogram import staleness_histograms
from .matrix import link_matrix, traffic_matrix
from .waits import waiting_bars

__all__ = [
    "accuracy_curves",
    "cut_map",
    "gantt",
    "link_matrix",
    "load_bars",
    "loss_curves",
    "staleness_heat",
    "staleness_histograms",
    "traffic_matrix",
    "waiting_bars",
]
