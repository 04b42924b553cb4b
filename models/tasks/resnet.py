"""`resnet`: residual nets (He et al., CVPR 2016) of any size.

Shapes: b batch, c channels, h/w rows and columns, n classes.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from ..readers.synthetic import synthetic_images
from ..task import Task, make_example_batches
from .check_sizes import check_count_list, check_counts

LARGE = 112  # images of at least so many rows pass a wide convolution and a pool first, as those of ImageNet


def resnet(
    blocks: Sequence[int] = (2, 2, 2, 2),
    width: int = 64,
    image: int = 224,
    classes: int = 1000,
    *,
    bottleneck: bool = False,
    batch: int = 32,
) -> Task:
    """Classify synthetic images [3, image, image] by a residual net; ResNet-18 by default.

    blocks: the number of residual blocks of each stage; each stage has half the rows and columns and twice the channels
    of the one before. width: channels of the first stage. resnet(blocks=(3,4,6,3), bottleneck=True) is ResNet-50;
    resnet(blocks=(3,3,3), width=16, image=32, classes=10) is close to the paper's ResNet-20 for CIFAR.
    """
    check_count_list(blocks=blocks)
    check_counts(width=width, image=image, classes=classes, batch=batch)
    shape = (3, image, image)
    return Task(
        name="resnet",
        model=lambda: ResidualNet(blocks, width, classes, large=image >= LARGE, bottleneck=bottleneck),
        loss=F.cross_entropy,
        example=make_example_batches((shape,), classes=classes),
        data=synthetic_images(shape, classes),
        batch=batch,
    )


class ResidualNet(nn.Module):
    """The whole net, from images x [b, 3, h, w] to scores [b, n].

    ResNet-18 has 11,689,512 parameters, ResNet-50 has 25,557,032. large: begin with a wide convolution and a pool.
    """

    def __init__(self, blocks: Sequence[int], width: int, classes: int, *, large: bool, bottleneck: bool) -> None:
        super().__init__()
        self.stem = Convolution(3, width, 7 if large else 3, stride=2 if large else 1)
        self.pool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        stages: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            inner = width << stage
            outer = 4 * inner if bottleneck else inner
            for i in range(count):
                stages.append(Residual(channels, inner, outer, stride=2 if stage and not i else 1))
                channels = outer
        self.blocks = nn.Sequential(*stages)
        self.scores = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.stem(x)))
        scores: Tensor = self.scores(self.blocks(x).mean((2, 3)))
        return scores


class Residual(nn.Module):
    """A residual block: convolutions of x [b, channels, h, w] are added to x, which gives [b, outer, h', w'].

    There are two convolutions of 3x3, or, if `outer` differs from `inner`, one of 3x3 between two of 1x1.
    """

    def __init__(self, channels: int, inner: int, outer: int, *, stride: int) -> None:
        super().__init__()
        if outer == inner:
            first, last = Convolution(channels, inner, 3, stride=stride), Convolution(inner, outer, 3)
            self.body = nn.Sequential(first, nn.ReLU(), last)
        else:
            first, middle = Convolution(channels, inner, 1), Convolution(inner, inner, 3, stride=stride)
            self.body = nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), Convolution(inner, outer, 1))
        same = channels == outer and stride == 1
        self.shortcut = nn.Identity() if same else Convolution(channels, outer, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class Convolution(nn.Sequential):
    """A padded convolution and a batch norm, from [b, c, h, w] to [b, outer, h', w'], where h' is about h / stride."""

    def __init__(self, channels: int, outer: int, kernel: int, *, stride: int = 1) -> None:
        convolution = nn.Conv2d(channels, outer, kernel, stride, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        super().__init__(convolution, nn.BatchNorm2d(outer))
