"""`alexnet`: the net of Krizhevsky et al. (NIPS 2012) in the one-tower form of Krizhevsky (2014)."""

import torch.nn.functional as F
from torch import nn

from ..readers.synthetic import synthetic_images
from ..task import Task, make_example_batches
from .check_sizes import check_counts, demand_fraction

IMAGE = (3, 224, 224)


def alexnet(classes: int = 1000, *, dropout: float = 0.5, batch: int = 64) -> Task:
    """Classify synthetic images [3, 224, 224] by five convolutions and three linear layers: 61.1 million parameters.

    dropout: the probability in front of each of the first two linear layers. batch: samples of a step.
    """
    check_counts(classes=classes, batch=batch)
    demand_fraction(dropout=dropout)
    return Task(
        name="alexnet",
        model=lambda: layers(classes, dropout),
        loss=F.cross_entropy,
        example=make_example_batches((IMAGE,), classes=classes),
        data=synthetic_images(IMAGE, classes),
        batch=batch,
    )


def layers(classes: int, dropout: float) -> nn.Module:
    """Return the net from images [b, 3, 224, 224] to scores [b, classes]; 61,100,840 parameters with 1,000 classes."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),  # [b, 64, 55, 55]
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),  # [b, 192, 27, 27]
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),  # [b, 384, 13, 13]
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),  # [b, 256, 6, 6]
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(256 * 6 * 6, 4096),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, classes),
    )
