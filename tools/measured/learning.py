"""Folds what a run took longer, or less, than predicted into what is kept of this machine.

A run is one sample, and what it says of a class is mixed with what others did meanwhile: half of its logarithm is taken
over, so that a few runs of the same kind agree and one disturbed run does not matter long.
"""

from collections.abc import Mapping

import msgspec

from .saved_probe import Ratio, SavedProbe

TAKEN_OVER = 0.5
MIN_FACTOR, MAX_FACTOR = 0.2, 5.0  # what all runs together may have changed
DIGITS = 3


def fold_in(saved: SavedProbe, classes: Mapping[str, Ratio], link: float | None) -> SavedProbe:
    """Return what is kept with the ratios of a run, measured over predicted, of classes of operators and of messages.

    classes: forward and backward, by class. link: None where no message was waited for.
    """
    learned = dict(saved.learned)
    for kind, (ahead, back) in classes.items():
        before = learned.get(kind, (1.0, 1.0))
        learned[kind] = (_fold(before[0], ahead), _fold(before[1], back))
    return msgspec.structs.replace(
        saved, learned=learned, learned_link=saved.learned_link if link is None else _fold(saved.learned_link, link)
    )


def _fold(before: float, ratio: float) -> float:
    return float(f"{min(MAX_FACTOR, max(MIN_FACTOR, before * ratio**TAKEN_OVER)):.{DIGITS}g}")
