"""Small transformers as their authors write them: what an operator table must know to cut them."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import Case, per_token, tokens

WIDTH, HEADS, GROUPS, LENGTH, WORDS = 16, 4, 2, 6, 24


class RootMeanSquare(nn.Module):
    """Llama's norm, of plain operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, the halves of a head turned against each other."""
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-second, first), -1) * sin


class Grouped(nn.Module):
    """Rotary, causal attention whose heads share keys and values by groups, in one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH + 2 * WIDTH // HEADS * GROUPS, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        size = WIDTH // HEADS
        q, k, v = self.project(x).split([WIDTH, size * GROUPS, size * GROUPS], -1)
        angles = torch.arange(length, device=x.device).outer(1e4 ** -torch.linspace(0, 1, size // 2)).to(x.dtype)
        cos, sin = (torch.cat((f(angles), f(angles)), -1) for f in (torch.cos, torch.sin))
        q = rotated(q.view(batch, length, HEADS, size).transpose(1, 2), cos, sin)
        k = rotated(k.view(batch, length, GROUPS, size).transpose(1, 2), cos, sin)
        v = v.view(batch, length, GROUPS, size).transpose(1, 2)
        k, v = (t[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).flatten(1, 2) for t in (k, v))
        allowed = torch.arange(length)[:, None] >= torch.arange(length)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False)
        self.down = nn.Linear(24, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Every expert for every token, weighted by the two best of a router: einsum over experts."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(WIDTH, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(4, WIDTH, 8) / 4), nn.Parameter(torch.randn(4, 8, WIDTH) / 4)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x).softmax(-1).topk(2, -1)
        share = (F.one_hot(chosen, 4) * (weights / weights.sum(-1, keepdim=True))[..., None]).sum(-2)
        hidden = F.gelu(torch.einsum("btd,edh->bteh", x, self.up), approximate="tanh")
        return torch.einsum("bteh,ehd,bte->btd", hidden, self.down, share)


class Biased(nn.Module):
    """T5's attention: a bias looked up by the distance of query and key, in buckets, and no scale."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.bias = nn.Embedding(8, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        distance = torch.arange(length)[None] - torch.arange(length)[:, None]
        near = distance.abs().clamp(max=7)
        bucket = torch.where(near < 4, near, torch.min(near, torch.full_like(near, 7)))
        scores = q @ k.transpose(-1, -2) + self.bias(bucket).permute(2, 0, 1)[None]
        y = F.dropout(scores.float().softmax(-1).type_as(scores), 0.1, self.training) @ v
        return self.o(y.transpose(1, 2).contiguous().view(batch, length, WIDTH))


class Masked(nn.Module):
    """GPT's attention before there was a fused one: a buffer of a mask, addmm, baddbmm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.randn(WIDTH, 3 * WIDTH) / 4), nn.Parameter(torch.zeros(3 * WIDTH))
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).tril().view(1, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        flat = torch.addmm(self.offset, x.reshape(-1, WIDTH), self.weight)
        q, k, v = (
            t.view(batch, length, HEADS, -1).transpose(1, 2).flatten(0, 1)
            for t in flat.view(batch, length, 3 * WIDTH).chunk(3, -1)
        )
        scores = torch.baddbmm(torch.zeros(1, 1, 1, dtype=x.dtype), q, k.mT, alpha=1 / math.sqrt(WIDTH // HEADS))
        scores = scores.masked_fill(self.mask[:, :length, :length] == 0, float("-inf"))
        y = torch.bmm(scores.softmax(-1), v).unflatten(0, (batch, HEADS))
        return y.transpose(1, 2).flatten(2)


class Complex(nn.Module):
    """Meta's rotary positions, by complex numbers; grouped heads by `enable_gqa`, causal by a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // HEADS * GROUPS, bias=False) for _ in range(2))

    def turned(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        angles = torch.outer(torch.arange(x.shape[1]), 1e4 ** -torch.arange(0, 1, 2 / x.shape[-1])).to(x.dtype)
        turns = torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(pairs * turns[None, :, None]).flatten(3)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, -1, WIDTH // HEADS) for f in (self.q, self.k, self.v))
        q, k, v = (t.transpose(1, 2) for t in (self.turned(q), self.turned(k), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, WIDTH))


class Language(nn.Module):
    """Embedding, one layer, and a head that shares the embedding's weight."""

    def __init__(self, attention: Callable[[], nn.Module], hidden: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.first, self.second, self.last = RootMeanSquare(), RootMeanSquare(), RootMeanSquare()
        self.attention, self.hidden = attention(), hidden()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, indices: Tensor) -> Tensor:
        x = self.embed(indices)
        x = x + self.attention(self.first(x))
        x = x + self.hidden(self.second(x))
        return self.head(self.last(x))


def language(attention: Callable[[], nn.Module], hidden: Callable[[], nn.Module]) -> Case:
    return Case(lambda: Language(attention, hidden), tokens(2, LENGTH, WORDS), per_token)


TRANSFORMERS = {
    "grouped heads in one projection, gated": language(Grouped, Gated),
    "complex positions, experts": language(Complex, Experts),
    "bias by distance, gated": language(Biased, Gated),
    "mask in a buffer, experts": language(Masked, Experts),
}
