"""Models of torchvision."""

from collections.abc import Callable

from outside import Outside, image_loss
from torch import nn
from torchvision_operators import import_models
from zoo import Case, images


def narrow_head(model: nn.Module, *widths: int) -> nn.Module:
    """Linear layers of other widths: those of AlexNet and VGG hold nearly all of their weights."""
    head = model.classifier
    at = [i for i, layer in enumerate(head) if isinstance(layer, nn.Linear)]
    read = head[at[0]].in_features
    for i, width in zip(at, widths, strict=True):
        head[i], read = nn.Linear(read, width), width
    return model


def vision(
    name: str,
    small: Callable[[], nn.Module],
    side: int,
    *,
    batch: int = 2,
    single: bool = True,
    full_side: int = 224,
) -> Outside:
    """A model of 1000 classes at the size it is published for, and a narrow one for images of `side` pixels."""

    def full() -> nn.Module:
        options = {"init_weights": False} if name == "inception_v3" else {}
        model: nn.Module = getattr(import_models(), name)(**options)
        return model

    return Outside(
        Case(small, images(batch, 3, side, side), image_loss),
        full,
        (8, 3, full_side, full_side),
        (8,),
        package="torchvision",
        single=single,
    )


def alexnet() -> nn.Module:
    return narrow_head(import_models().alexnet(), 64, 32, 5)


def vgg16() -> nn.Module:
    model = import_models().vgg16()
    model.avgpool = nn.AdaptiveAvgPool2d((2, 2))
    model.classifier[0] = nn.Linear(512 * 4, 1)
    return narrow_head(model, 64, 32, 5)


def resnet50(*, zero_init_residual: bool = False) -> nn.Module:
    resnet = import_models().resnet
    model: nn.Module = resnet.ResNet(
        resnet.Bottleneck, [3, 4, 6, 3], num_classes=5, width_per_group=8, zero_init_residual=zero_init_residual
    )
    return model


def tuned(model: nn.Module) -> nn.Module:
    """A model as it is tuned: its batch norms keep the statistics that they have."""
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.eval()
        norm.train = lambda mode=True, norm=norm: norm
    return model


def densenet121() -> nn.Module:
    model: nn.Module = import_models().DenseNet(8, (6, 12, 24, 16), 16, bn_size=2, num_classes=5)
    return model


def inception_v3() -> nn.Module:
    model: nn.Module = import_models().inception_v3(num_classes=5, aux_logits=False, init_weights=False)
    return model


def vit_b_16() -> nn.Module:
    model: nn.Module = import_models().VisionTransformer(32, 16, 12, 4, 48, 96, dropout=0.1, num_classes=5)
    return model


VISION = {
    "alexnet": vision("alexnet", alexnet, 67),
    "vgg16": vision("vgg16", vgg16, 32),
    "resnet50": vision("resnet50", resnet50, 64, batch=4, single=False),
    "densenet121": vision("densenet121", densenet121, 96, batch=4, single=False),
    "inception_v3": vision("inception_v3", inception_v3, 107, batch=4, single=False, full_side=299),
    "vit_b_16": vision("vit_b_16", vit_b_16, 32),
}

# The same with batch norms under which plain float32 holds the tolerance.
WELL_CONDITIONED = {
    "resnet50, residuals zero": vision("resnet50", lambda: resnet50(zero_init_residual=True), 64, batch=4),
    "resnet50, tuned": vision("resnet50", lambda: tuned(resnet50()), 64),
    "densenet121, tuned": vision("densenet121", lambda: tuned(densenet121()), 96),
    "inception_v3, tuned": vision("inception_v3", lambda: tuned(inception_v3()), 107),
}
