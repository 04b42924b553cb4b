"""`local_80m`, `local_330m`, `local_1700m`: the image nets of DistBelief (Dean et al., 2012, section 5 and figure 3).

The paper gives images of 100x100 pixels, three stages of filtering, pooling and local contrast normalisation, filters
that see a 10x10 patch of the stage below and are not shared between positions, 8 to 36 of them a patch, 21 thousand
one-vs-all logistic outputs, and the totals: 80 million, 330 million and 1.7 billion parameters. It gives neither
strides nor pools. Here every filter has stride 1 and every pool sees 4x4; the numbers of maps and the strides of the
pools are chosen so that the totals match:

    task         maps   pool strides  rows of the maps, filters / pools   features  parameters
    local_80m       8        1, 2, 3      91 / 88, 79 / 38, 29 /  9            648        79.0 M
    local_330m     18        1, 3, 1      91 / 88, 79 / 26, 17 / 14          3,528       330.7 M
    local_1700m    36        1, 1, 4      91 / 88, 79 / 76, 67 / 16          9,216     1,674.3 M

Filters are linear, pools take the root of the mean square (L2), and the normalisation is over all maps, as in the net
of Le et al. (ICML 2012, section 3) that the paper builds on.

Shapes: b batch, c channels or maps, h/w rows and columns, n classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..readers.synthetic import synthetic_images
from ..task import Task, TaskError, make_example_batches
from .check_sizes import check_count_list, check_counts
from .locally_connected import LocallyConnected2d

IMAGE, CHANNELS, FILTER, POOL, NORMALISED = 100, 3, 10, 4, 5
CLASSES = 21_000
BATCH = 100
MIN_MEAN_SQUARE = 1e-4  # so that a root has a gradient and nothing is divided by zero


def local_80m() -> Task:
    """Train the net of 79.0 million parameters, with 8 maps and pools of strides 1, 2 and 3, on synthetic images."""
    return _task("local_80m", maps=8, steps=(1, 2, 3))


def local_330m() -> Task:
    """Train the net of 330.7 million parameters, with 18 maps and pools of strides 1, 3 and 1, on synthetic images."""
    return _task("local_330m", maps=18, steps=(1, 3, 1))


def local_1700m() -> Task:
    """Train the net of 1.674 billion parameters, with 36 maps and pools of strides 1, 1 and 4, on synthetic images."""
    return _task("local_1700m", maps=36, steps=(1, 1, 4))


def local_net(
    maps: int = 8, steps: Sequence[int] = (2, 2), image: int = 32, kernel: int = 5, classes: int = 10, batch: int = 32
) -> Task:
    """Train a net of the same kind in any size, small by default, on synthetic images [3, image, image].

    steps: the stride of each stage's pools; there are as many stages. kernel: rows and columns that a filter sees.
    """
    check_count_list(steps=steps)
    check_counts(maps=maps, image=image, kernel=kernel, classes=classes, batch=batch)
    return _task("local_net", maps=maps, steps=steps, image=image, kernel=kernel, classes=classes, batch=batch)


def _task(
    name: str,
    *,
    maps: int,
    steps: Sequence[int],
    image: int = IMAGE,
    kernel: int = FILTER,
    classes: int = CLASSES,
    batch: int = BATCH,
) -> Task:
    shape = (CHANNELS, image, image)
    return Task(
        name=name,
        model=lambda: LocalNet(image, maps, steps, kernel=kernel, classes=classes),
        loss=OneVersusAll(classes),
        example=make_example_batches((shape,), classes=classes),
        data=synthetic_images(shape, classes),
        batch=batch,
    )


class LocalNet(nn.Module):
    """The whole net, from images x [b, 3, image, image] to scores [b, n]."""

    def __init__(self, image: int, maps: int, steps: Sequence[int], *, kernel: int, classes: int) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        channels, size = CHANNELS, image
        for step in steps:
            if size - kernel + 1 < POOL:
                raise TaskError(
                    f"stage {len(stages) + 1} gets {size}x{size} points, too few for filters of {kernel}x{kernel} "
                    f"and pools of {POOL}x{POOL}",
                    fix="give a larger image, or fewer or smaller steps",
                )
            stages.append(Stage(channels, maps, size=size, kernel=kernel, step=step))
            channels, size = maps, (size - kernel + 1 - POOL) // step + 1
        self.stages = nn.Sequential(*stages)
        self.scores = nn.Linear(channels * size * size, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.stages(x).flatten(1))
        return scores


class Stage(nn.Module):
    """Local filters, then L2 pooling, then local contrast normalisation.

    x [b, c, size, size] becomes [b, maps, s, s] with s = (size - kernel + 1 - 4) // step + 1.
    """

    def __init__(self, channels: int, maps: int, *, size: int, kernel: int, step: int) -> None:
        super().__init__()
        self.filters = LocallyConnected2d(channels, maps, size=(size, size), kernel=kernel)
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return normalise(pool_l2(self.filters(x), self.step))


def pool_l2(x: Tensor, step: int) -> Tensor:
    """Return the root of the mean square over windows of 4x4, for each map by itself (L2 pooling)."""
    return F.avg_pool2d(x.square(), POOL, step).clamp_min(MIN_MEAN_SQUARE).sqrt()


def normalise(x: Tensor) -> Tensor:
    """Subtract the local mean, then divide by the local root of the mean square (local contrast normalisation).

    Both are over all maps and 5x5 points, as in Jarrett et al. (ICCV 2009), with a box instead of their Gaussian
    window. Beyond its edges an image counts as zero.
    """
    centred = x - _local_mean(x)
    return centred / _local_mean(centred.square()).clamp_min(MIN_MEAN_SQUARE).sqrt()


def _local_mean(x: Tensor) -> Tensor:
    """Return the mean over all maps and 5x5 points: [b, 1, h, w]."""
    return F.avg_pool2d(x.mean(1, keepdim=True), NORMALISED, 1, NORMALISED // 2)


class OneVersusAll(nn.Module):
    """The loss of one logistic classifier per class: binary cross-entropies of scores [b, n], summed over classes.

    It is their mean over the samples. The targets are class numbers [b]; comparing them with the buffer of all class
    numbers [n] makes the zeros and ones.
    """

    numbers: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.arange(classes, device="cpu"), persistent=False)

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        right = target.unsqueeze(1).eq(self.numbers).to(scores.dtype)  # [b, n]
        return F.binary_cross_entropy_with_logits(scores, right, reduction="sum") / len(scores)
