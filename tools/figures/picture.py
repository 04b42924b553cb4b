"""The pictures, each a function from a placement or a result to an SVG; one import for all of them."""

from .bars import load_bars
from .learning_curves import accuracy_curves, loss_curves
from .cut_map import cut_map
from .gantt import gantt
from .heat import staleness_heat
from .staleness import staleness_histograms
from .load_and_traffic import link_matrix, traffic_matrix
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
