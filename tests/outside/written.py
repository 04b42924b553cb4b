"""A GPT in the manner of nanoGPT, UNets and a style net: models that need no package, as their users write them."""

import itertools

import torch
import torch.nn.functional as F
from outside import Outside
from torch import Tensor, nn
from zoo import Case, classes, per_token, real, tokens

from cutset.models.task import Data


class Attention(nn.Module):
    """Causal self-attention of all heads at once."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.heads, self.dropout, self.drop = heads, dropout, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.drop(self.out(y.transpose(1, 2).contiguous().view(batch, length, width)))


class Layer(nn.Module):
    """Attention and a perceptron, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads, dropout)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.drop(self.narrow(F.gelu(self.wide(self.norm_2(x)))))


class NanoGpt(nn.Module):
    """Token and position embeddings, layers, and a head that shares the tokens' weights."""

    def __init__(self, words: int, length: int, width: int, heads: int, layers: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, words, bias=False)
        self.token.weight = self.head.weight
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        position = torch.arange(0, x.size(1), dtype=torch.long, device=x.device)
        h = self.drop(self.token(x) + self.place(position))
        for layer in self.layers:
            h = layer(h)
        out: Tensor = self.head(self.norm(h))
        return out


class Twice(nn.Sequential):
    """Two convolutions."""

    def __init__(self, read: int, made: int, norm: str) -> None:
        layers: list[nn.Module] = []
        for channels in (read, made):
            after = nn.BatchNorm2d(made) if norm == "batch" else nn.GroupNorm(4, made)
            act = nn.ReLU(inplace=True) if norm == "batch" else nn.SiLU()
            layers += [nn.Conv2d(channels, made, 3, padding=1, bias=False), after, act]
        super().__init__(*layers)


class UNet(nn.Module):
    """Ronneberger et al. 2015: down by pooling, up by a transposed convolution or by interpolation, with skips."""

    def __init__(self, channels: int, levels: int, classes: int, *, norm: str, smooth: bool) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(levels + 1)]
        self.first = Twice(3, widths[0], norm)
        self.down = nn.ModuleList(Twice(a, b, norm) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(b, a, 1))
            if smooth
            else nn.ConvTranspose2d(b, a, 2, stride=2)
            for a, b in itertools.pairwise(widths)
        )
        self.mix = nn.ModuleList(Twice(2 * a, a, norm) for a in widths[:-1])
        self.drop, self.out = nn.Dropout2d(0.2), nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.first(x)]
        for down in self.down:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = self.drop(kept.pop())
        for up, mix, skip in zip(self.up[::-1], self.mix[::-1], kept[::-1], strict=True):
            x = mix(torch.cat([skip, up(x)], 1))
        out: Tensor = self.out(x)
        return out


class Mirrored(nn.Sequential):
    """A convolution beyond whose edges the image is mirrored, and a norm of each image."""

    def __init__(self, read: int, made: int, kernel: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(read, made, kernel, stride, kernel // 2, padding_mode="reflect", bias=False),
            nn.InstanceNorm2d(made, affine=True),
            nn.ReLU(),
        )


class StyleNet(nn.Module):
    """Johnson et al. 2016: down by strides, residual layers, up by interpolation and by a pixel shuffle."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        c = channels
        self.down = nn.Sequential(Mirrored(3, c, 9), Mirrored(c, 2 * c, 3, 2), Mirrored(2 * c, 4 * c, 3, 2))
        self.layers = nn.ModuleList(
            nn.Sequential(Mirrored(4 * c, 4 * c, 3), nn.Conv2d(4 * c, 4 * c, 3, padding="same", groups=4, bias=False))
            for _ in range(layers)
        )
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), Mirrored(4 * c, 4 * c, 3), nn.PixelShuffle(2))
        self.out = nn.Sequential(nn.LocalResponseNorm(3), nn.Conv2d(c, 3, 4, padding="same"), nn.ReplicationPad2d(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        for layer in self.layers:
            x = x + layer(x)
        return F.avg_pool2d(self.out(self.up(x)), 3, 1)


def unet(norm: str, *, smooth: bool) -> Outside:
    """A segmentation net and its loss for each pixel."""
    return Outside(
        Case(
            lambda: UNet(8, 3, 3, norm=norm, smooth=smooth),
            lambda: Data((real(2, 3, 24, 16),), (classes(3, 2, 24, 16),)),
        ),
        lambda: UNet(64, 4, 3, norm=norm, smooth=smooth),
        (4, 3, 256, 256),
        (4, 256, 256),
        light=True,
    )


WRITTEN = {
    "nanoGPT": Outside(
        Case(lambda: NanoGpt(40, 8, 32, 4, 2), tokens(4, 8, 40), per_token),
        lambda: NanoGpt(50304, 1024, 768, 12, 12),
        (4, 1024),
        (4, 1024),
        light=True,
    ),
    "UNet": unet("batch", smooth=False),
    "smooth UNet": unet("group", smooth=True),
    "style net": Outside(
        Case(lambda: StyleNet(8, 2), lambda: Data((real(2, 3, 20, 16),), (classes(3, 2, 20, 16),))),
        lambda: StyleNet(32, 5),
        (4, 3, 256, 256),
        (4, 256, 256),
        light=True,
    ),
}
