"""Small models of many kinds, each with a batch and a loss: what the cut must not change."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutset.models.task import Data
from cutset.models.tasks.locally_connected import LocallyConnected2d


@dataclass(frozen=True)
class Case:
    """A model, its loss and a batch. exact: one machine gives the very bits of plain torch."""

    model: Callable[[], nn.Module]
    batch: Callable[[], Data]
    loss: Callable[..., Tensor] = F.cross_entropy
    exact: bool = True


def real(*shape: int) -> Tensor:
    return torch.randn(*shape)


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape)


def images(batch: int, *shape: int, count: int = 5) -> Callable[[], Data]:
    return lambda: Data((real(batch, *shape),), (classes(count, batch),))


def tokens(batch: int, length: int, count: int = 30) -> Callable[[], Data]:
    return lambda: Data((classes(count, batch, length),), (classes(count, batch, length),))


def per_token(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(inplace=True), nn.Linear(16, 10), nn.Tanh(), nn.Linear(10, 5))


class ConvNet(nn.Module):
    """Convolutions with stride, padding, dilation and groups; batch norm; both kinds of pooling, with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.dilated = nn.Conv2d(8, 6, 3, padding=2, dilation=2, bias=False)
        self.last = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(x + F.gelu(self.grouped(x)), 3, 2, 1)
        x = F.avg_pool2d(self.dilated(x), 2, 1, padding=1)
        return self.last(x.mean((2, 3)))


def local() -> nn.Module:
    return nn.Sequential(
        LocallyConnected2d(1, 4, size=(8, 8), kernel=3),
        nn.ReLU(),
        LocallyConnected2d(4, 3, size=(6, 6), kernel=2, stride=2),
        nn.Flatten(),
        nn.Linear(27, 5),
    )


class Transformer(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=dropout, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x)))


class Causal(nn.Module):
    """Tied embedding and head, fused query-key-value, causal attention with dropout, cat, slices, select and split."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        batch, length = x.shape
        heads = (part.view(batch, length, 4, 4).transpose(1, 2) for part in self.qkv(self.norm(h)).split(16, dim=-1))
        attended = F.scaled_dot_product_attention(*heads, is_causal=True, dropout_p=0.2 if self.training else 0.0)
        h = h + self.drop(attended.transpose(1, 2).reshape(batch, length, 16))
        h = torch.cat([h[:, :3], h[:, 3:] * 2], 1) + h.select(1, 0).unsqueeze(1)
        return self.head(h[:, ::2].contiguous())


class Recurrent(nn.Module):
    """An operator without a rule, which draws random numbers itself, and a parameter that is broadcast."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, 2, dropout=dropout, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        z = self.drop(self.out(self.lstm(x)[0][:, -1])) * self.scale
        return torch.softmax(z + (z @ z.t()) @ z, -1)


class Residual(nn.Module):
    """A residual block with in-place additions and activations, adaptive pooling, and a shortcut with its own norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm_a = nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6)
        self.b, self.norm_b = nn.Conv2d(6, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6)
        self.short = nn.Sequential(nn.Conv2d(3, 6, 1, 2, bias=False), nn.BatchNorm2d(6))
        self.out = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_b(self.b(F.relu(self.norm_a(self.a(x)), inplace=True)))
        y += self.short(x)
        return self.out(F.adaptive_avg_pool2d(F.relu(y, inplace=True), 1).flatten(1))


class UNet(nn.Module):
    """A skip connection by cat, a transposed convolution, interpolation and a group norm: operators without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 2, 2)
        self.mix, self.norm, self.out = nn.Conv2d(8, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down(x))
        low = F.relu(self.low(F.max_pool2d(skip, 2)))
        up = self.up(low) + F.interpolate(low[:, :4], scale_factor=2.0, mode="nearest")
        return self.out(F.relu(self.norm(self.mix(torch.cat([skip, up], 1)))))


class Gpt(nn.Module):
    """Attention of plain operators: chunk, a mask that is a buffer, masked_fill, softmax, dropout on the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(30, 16), nn.Embedding(6, 16)
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16, elementwise_affine=False)])
        self.qkv, self.mix = nn.Linear(16, 48), nn.Linear(16, 16, bias=False)
        self.wide, self.narrow, self.drop = nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(0.1)
        self.head = nn.Linear(16, 30, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)).view(1, 1, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape
        h = self.embed(x) + self.place(torch.arange(length, device=x.device))
        q, k, v = (t.view(batch, length, 4, 4).transpose(1, 2) for t in self.qkv(self.norms[0](h)).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(4)
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        attended = self.drop(F.softmax(scores, -1)) @ v
        h = h + self.mix(attended.transpose(1, 2).contiguous().view(batch, length, 16))
        h = h + self.narrow(F.gelu(self.wide(self.norms[1](h)), approximate="tanh"))
        return self.head(h)


class Odd(nn.Module):
    """einsum, bmm, two inputs, a dictionary as result; unused, frozen, scalar and empty parameters; a 0-d buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(3, 8)
        self.weight = nn.Parameter(real(8, 2, 6))
        self.scale, self.unused = nn.Parameter(torch.tensor(0.5)), nn.Parameter(real(3))
        self.frozen, self.empty = nn.Parameter(real(6), requires_grad=False), nn.Parameter(real(0))
        self.register_buffer("shift", torch.tensor(2.0))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h, g = torch.tanh(self.a(x)), torch.sigmoid(self.b(y))
        z = torch.stack([h, g], 1)
        z = z - z.mean(1, keepdim=True)
        out = torch.einsum("bi,ijk->bjk", h, self.weight).sum(1) * self.scale + self.shift + self.frozen
        out = torch.cat([out, out[:, :0]], 1) + self.empty.sum()
        return {"out": out + torch.bmm(z, z.transpose(1, 2)).flatten(1).sum(1, keepdim=True), "extra": (h * g).sum()}


class Siamese(nn.Module):
    """One encoder used twice: its batch norm's statistics change twice a step, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 3 * F.normalize(self.encode(a), dim=-1) @ F.normalize(self.encode(b), dim=-1).t()


class RunningMean(nn.Module):
    """A buffer that a step reads and overwrites, in part and whole, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.zeros(2, 4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
                self.seen[1].copy_(y[0])
                self.steps += 1
        return self.outer(F.relu(y - self.mean) * self.mean.abs().sqrt() + self.seen.sum(0))


class Overwrites(nn.Module):
    """Values overwritten in part: through slices, transposes and views, and read again through others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).clone()
        y[:, 1:][:, :2] += 1
        y.t()[0] *= 3.0
        pairs = y.view(-1, 3, 2)
        pairs[..., 0] = pairs[..., 1] * 2
        out = torch.zeros_like(y)
        for row in range(len(x)):
            out[row] = y[-1 - row]
        out.masked_fill_(out > 2, 0.5).clamp_(-1.0)
        counts = torch.zeros(6, dtype=torch.float32)
        counts += y.detach().sum(0)  # keeps its dtype
        return out * y.unsqueeze_(0).squeeze(0) + counts


class Random(nn.Module):
    """Random numbers of many kinds, between which dropout must draw its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.inner(x), 0.3, self.training)
        h = h + 0.1 * torch.randn_like(h) + x.new_empty(len(x), 6).uniform_()
        h = F.dropout(h.t(), 0.2, self.training).t() * torch.bernoulli(torch.full_like(h, 0.5))
        return self.outer(F.alpha_dropout(h, 0.1, self.training))


class NoGrad(nn.Module):
    """A part without gradients, a straight-through rounding, and weights shared by three calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = self.other(x) * 2 + 1
        y = self.linear(self.linear(self.linear(x)))
        y = y + (torch.round(y * 4) / 4 - y).detach()
        return y * fixed + self.other(x)


CASES = {
    "mlp": Case(mlp, images(6, 12)),
    "conv": Case(ConvNet, images(4, 3, 17, 15), nn.CrossEntropyLoss(label_smoothing=0.1)),
    "local": Case(local, images(6, 1, 8, 8)),
    "transformer": Case(lambda: Transformer(0.0), tokens(4, 6), per_token),
    "transformer_dropout": Case(lambda: Transformer(0.1), tokens(4, 6), per_token),
    "causal": Case(
        Causal,
        lambda: Data((classes(30, 4, 6),), (classes(30, 4, 3),)),
        lambda o, t: F.cross_entropy(o.transpose(1, 2), t),
    ),
    "recurrent": Case(Recurrent, lambda: Data((real(4, 3, 6),), (real(4, 3),)), nn.MSELoss()),
}

MORE_CASES = {
    "residual": Case(Residual, images(4, 3, 9, 8)),
    "unet": Case(UNet, lambda: Data((real(2, 1, 8, 8),), (classes(3, 2, 8, 8),))),
    "gpt": Case(Gpt, tokens(4, 6), per_token),
    "odd": Case(
        Odd,
        lambda: Data((real(4, 4), real(4, 3)), (classes(6, 4),)),
        lambda o, t: F.cross_entropy(o["out"], t) + 0.1 * o["extra"],
    ),
    "siamese": Case(
        Siamese, lambda: Data((real(6, 5), real(6, 5)), ()), lambda o: F.cross_entropy(o, torch.arange(len(o)))
    ),
    "running_mean": Case(RunningMean, lambda: Data((real(4, 4),), (real(4, 4),)), F.mse_loss),
    "overwrites": Case(Overwrites, lambda: Data((real(4, 6),), (real(4, 6),)), F.mse_loss, exact=False),
    "random": Case(Random, images(4, 5, count=3)),
    "no_grad": Case(NoGrad, lambda: Data((real(4, 4),), (real(4, 4),)), F.l1_loss),
}
