"""Models of many kinds as their users write them, small: recurrent, of graphs, of spectra, of states, adversarial."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WORDS, WIDTH, NODES, FEATURES = 50, 16, 12, 8


class RecurrentLanguageModel(nn.Module):
    """Embedding, recurrent layers and a head; packed: over sequences of unequal length."""

    def __init__(self, kind: type[nn.RNNBase], *, packed: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers, self.packed = kind(WIDTH, WIDTH, 2, batch_first=True), packed

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        h = self.embed(x)
        if not self.packed:
            out: Tensor = self.head(self.layers(h)[0])
            return out
        assert lengths is not None
        packed = pack_padded_sequence(h, lengths.cpu(), batch_first=True, enforce_sorted=False)
        padded, _ = pad_packed_sequence(self.layers(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.head(padded)


class CellLoop(nn.Module):
    """A recurrent cell that Python steps along a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        state = (x.new_zeros(len(x), WIDTH), x.new_zeros(len(x), WIDTH))
        made = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            made.append(self.head(state[0]))
        return torch.stack(made, 1)


class GraphConvolution(nn.Module):
    """Kipf and Welling 2017, by index_add over the edges [2, edges] of one graph for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        offset = torch.arange(len(x), device=x.device)[:, None, None] * NODES
        source, target = (edges + offset).transpose(0, 1).flatten(1)
        nodes = x.flatten(0, 1)
        degree = x.new_ones(len(nodes)).index_add(0, target, x.new_ones(len(target)))
        weight = (degree[source] * degree[target]).rsqrt()[:, None]
        for layer in (self.first, self.second):
            h = layer(nodes)
            nodes = F.relu(h / degree[:, None] + torch.zeros_like(h).index_add(0, target, h[source] * weight))
        return nodes.unflatten(0, x.shape[:2])


class GraphAttention(nn.Module):
    """GATv2 (Brody et al. 2022): the softmax over the neighbours of each node, by scatter_reduce and scatter_add."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.left, self.right = heads, nn.Linear(FEATURES, WIDTH), nn.Linear(FEATURES, WIDTH)
        self.attention, self.out = nn.Parameter(torch.randn(heads, WIDTH // heads)), nn.Linear(WIDTH, FEATURES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        offset = torch.arange(len(x), device=x.device)[:, None, None] * NODES
        source, target = (edges + offset).transpose(0, 1).flatten(1)
        nodes = x.flatten(0, 1)
        left = self.left(nodes).view(len(nodes), self.heads, -1)
        right = self.right(nodes).view(len(nodes), self.heads, -1)
        score = (F.leaky_relu(left[source] + right[target], 0.2) * self.attention).sum(-1)
        index = target[:, None].expand_as(score)
        largest = score.new_zeros(len(nodes), self.heads).scatter_reduce(0, index, score, "amax", include_self=False)
        weight = (score - largest[target]).exp()
        total = torch.zeros_like(largest).scatter_add(0, index, weight)
        message = left[source] * (weight / total[target])[..., None]
        gathered = torch.zeros_like(left).index_add(0, target, message)
        return self.out(gathered.flatten(1)).unflatten(0, x.shape[:2])


class FourierOperator(nn.Module):
    """A Fourier neural operator (Li et al. 2021) in two dimensions."""

    def __init__(self, channels: int = 8, modes: int = 4) -> None:
        super().__init__()
        self.lift, self.out, self.modes = nn.Conv2d(1, channels, 1), nn.Conv2d(channels, 1, 1), modes
        self.local = nn.Conv2d(channels, channels, 1)
        self.weight = nn.Parameter(torch.randn(channels, channels, 2 * modes, modes, 2) / channels)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x)
        spectrum = torch.fft.rfft2(h)
        weight, m = torch.view_as_complex(self.weight), self.modes
        out = torch.zeros_like(spectrum)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], weight[:, :, :m])
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], weight[:, :, m:])
        return self.out(F.gelu(torch.fft.irfft2(out, s=h.shape[-2:]) + self.local(h)))


class StateSpace(nn.Module):
    """S4D (Gu et al. 2022): a diagonal state space as a long convolution by FFT, its kernel of complex numbers."""

    def __init__(self, channels: int = FEATURES, states: int = 8) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.rand(channels) * 2 - 4)
        self.real = nn.Parameter(torch.log(0.5 * torch.ones(channels, states)))
        self.imaginary = nn.Parameter(math.pi * torch.arange(states).repeat(channels, 1).float())
        self.c = nn.Parameter(torch.randn(channels, states, 2))
        self.skip, self.mix = nn.Parameter(torch.ones(channels)), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        length, step = x.shape[1], self.step.exp()
        a = -self.real.exp() + 1j * self.imaginary
        scaled = a * step[:, None]
        c = torch.view_as_complex(self.c) * (scaled.exp() - 1) / a
        kernel = 2 * torch.einsum("cs,csl->cl", c, (scaled[..., None] * torch.arange(length)).exp()).real
        u = x.transpose(1, 2)
        long = torch.fft.irfft(torch.fft.rfft(u, 2 * length) * torch.fft.rfft(kernel, 2 * length), 2 * length)
        return self.mix(F.gelu((long[..., :length] + self.skip[:, None] * u).transpose(1, 2)))


class PenalizedCritic(nn.Module):
    """The critic of WGAN-GP (Gulrajani et al. 2017) with its loss, whose penalty is a gradient that has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        if not self.training:
            return self.critic(real)
        part = torch.rand(len(real), 1, dtype=real.dtype, device=real.device)
        mixed = (part * real + (1 - part) * fake).requires_grad_()
        (gradient,) = torch.autograd.grad(self.critic(mixed).sum(), mixed, create_graph=True)
        penalty = (gradient.norm(2, 1) - 1).square().mean()
        return self.critic(fake).mean() - self.critic(real).mean() + 10 * penalty


class MaskedEncoder(nn.Module):
    """An encoder over padded texts, of which nn.TransformerEncoder and a masked mean leave the padding out."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True)
        self.embed, self.encoder = nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        padding = x == 0
        h = self.encoder(self.embed(x), src_key_padding_mask=padding)
        kept = (~padding)[..., None].to(h.dtype)
        return self.head((h * kept).sum(1) / kept.sum(1).clamp(min=1))


class BooleanIndex(nn.Module):
    """Entries chosen by a mask; how many there are depends on the data. by: how they are chosen."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.first, self.second, self.by = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES), by

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        mask = h > 0
        if self.by == "assignment":
            h = h.clone()
            h[~mask] = 0.1
        elif self.by == "nonzero":
            rows = (h.sum(-1) > 0).nonzero().squeeze(-1)
            h = h.index_add(0, rows, h[rows])
        else:
            h = h + h[mask].mean()
        return self.second(h)


class Sampling(nn.Module):
    """A variational autoencoder whose latent is drawn, and a Gumbel choice. distribution: by torch.distributions."""

    def __init__(self, *, distribution: bool) -> None:
        super().__init__()
        self.distribution = distribution
        self.encode, self.decode = nn.Linear(FEATURES, 2 * WIDTH), nn.Linear(WIDTH, FEATURES)
        self.choice = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        mean, scale = self.encode(x).chunk(2, -1)
        deviation = (0.5 * scale).exp()
        if self.distribution:
            drawn = torch.distributions.Normal(mean, deviation).rsample()
        else:
            drawn = mean + torch.randn_like(mean) * deviation
        latent = drawn if self.training else mean
        gate = F.gumbel_softmax(self.choice(latent), hard=True) if self.training else self.choice(latent).softmax(-1)
        return self.decode(latent) * gate[:, :1]


class StraightThrough(torch.autograd.Function):
    """The sign, with the gradient of the identity near zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class Binary(nn.Module):
    """Layers between which activations are signs, by a custom autograd function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(StraightThrough.apply(self.first(x)))


class ComplexLayer(nn.Module):
    """Weights of complex numbers, and the absolute values of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, WIDTH, dtype=torch.complex64))
        self.out = nn.Linear(WIDTH, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x.to(self.weight.dtype) @ self.weight).abs().to(self.out.weight.dtype))


class CachedAttention(nn.Module):
    """Attention whose keys and values are written into a cache, a buffer, in place."""

    def __init__(self, samples: int = 4, length: int = 8) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, FEATURES)
        self.register_buffer("keys", torch.zeros(samples, 2 * length, WIDTH))
        self.register_buffer("values", torch.zeros(samples, 2 * length, WIDTH))
        self.embed = nn.Linear(FEATURES, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(x)).chunk(3, -1)
        length = x.shape[1]
        self.keys[:, :length] = k.detach()
        self.values[:, :length] = v.detach()
        keys, values = torch.cat([self.keys[:, length:], k], 1), torch.cat([self.values[:, length:], v], 1)
        return self.out(F.scaled_dot_product_attention(q, keys, values))


class OwnStatistics(nn.Module):
    """A running mean that the user keeps himself. assigned: written as an assignment, and not in place."""

    def __init__(self, *, assigned: bool) -> None:
        super().__init__()
        self.first, self.second, self.assigned = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES), assigned
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            now = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            if self.assigned:
                self.mean = now
            else:
                self.mean.copy_(now)
                self.steps += 1
        return self.second(torch.tanh(h - self.mean))
