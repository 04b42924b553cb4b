"""`speech`: the acoustic net of DistBelief (Dean et al., NIPS 2012, section 5), fully connected."""

from functools import partial
from itertools import pairwise

import torch.nn.functional as F
from torch import nn

from ..readers.synthetic import synthetic_images
from ..task import Task, make_example_batches

INPUTS = 440  # 11 frames of 40 log-energies
HIDDEN, LAYERS = 2560, 4
STATES = 8192


def speech(hidden: int = HIDDEN) -> Task:
    """Train four layers of 2,560 logistic units and a softmax over 8,192 states, on synthetic frames [440].

    hidden: other numbers of units than the paper's.
    """
    return Task(
        name="speech",
        model=partial(acoustic_net, hidden),
        loss=F.cross_entropy,
        example=make_example_batches(((INPUTS,),), classes=STATES),
        data=synthetic_images((INPUTS,), STATES),
        batch=100,
    )


def acoustic_net(hidden: int = HIDDEN) -> nn.Module:
    """Return the net from frames [b, 440] to scores [b, 8192]; as in the paper it has 41,777,152 parameters."""
    widths = [INPUTS, *[hidden] * LAYERS]
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.Sigmoid())]
    return nn.Sequential(*layers, nn.Linear(hidden, STATES))
