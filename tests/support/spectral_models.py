"""Models of complex numbers: Fourier neural operators and state spaces, their weights stored as pairs of real numbers.

Each begins with a parameter of an odd number of elements, so that in a flat buffer the next one lies at an odd place.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import Case, real

from cutset.models.task import Data


class Spectral(nn.Module):
    """Multiplies the lowest modes of a signal by complex weights (Li et al., "Fourier neural operator", 2021)."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, 2) / width)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        low = spectrum[:, :, : self.modes]
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", low, torch.view_as_complex(self.weight))
        return torch.fft.irfft(out, n=x.shape[-1])


class Spectral2d(nn.Module):
    """The same of images; the modes of negative frequencies have weights of their own."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weights = nn.ParameterList(torch.randn(width, width, modes, modes, 2) / width for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        spectrum, m = torch.fft.rfft2(x), self.modes
        out = torch.zeros_like(spectrum)
        for rows, weight in zip((slice(None, m), slice(-m, None)), self.weights, strict=True):
            part = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, rows, :m], torch.view_as_complex(weight))
            out[:, :, rows, :m] = part
        return torch.fft.irfft2(out, s=x.shape[-2:])


class FourierOperator(nn.Module):
    """A Fourier neural operator of one layer. convolution: nn.Conv1d or nn.Conv2d, with its spectral layer."""

    def __init__(self, convolution: type[nn.Module], spectral: nn.Module, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.up, self.skip = convolution(1, width, 1), convolution(width, width, 1)
        self.down, self.spectral = convolution(width, 1, 1, bias=False), spectral

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x * self.scale.sum())
        out: Tensor = self.down(F.gelu(self.spectral(h) + self.skip(h)))
        return out


class StateSpace(nn.Module):
    """A diagonal state space (S4D: Gu et al., 2022), as a convolution with a kernel of complex exponentials."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(1))
        self.read = nn.Parameter(torch.randn(width, states, 2))
        self.log_step = nn.Parameter(torch.linspace(-3, -1, width))
        self.decay = nn.Parameter(torch.zeros(width, states))
        self.frequency = nn.Parameter(math.pi * torch.arange(states).repeat(width, 1).to(torch.get_default_dtype()))
        self.mix = nn.Conv1d(width, 2 * width, 1)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        poles = -torch.exp(self.decay) + 1j * self.frequency
        scaled = poles * torch.exp(self.log_step)[:, None]
        read = torch.view_as_complex(self.read) * (torch.exp(scaled) - 1.0) / poles
        kernel = 2 * torch.einsum("hn,hnl->hl", read, torch.exp(scaled[..., None] * torch.arange(length))).real
        spectrum = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length]
        return F.glu(self.mix(F.gelu(y + x * self.first)), dim=-2)


SPECTRAL = {
    "fourier operator": Case(
        lambda: FourierOperator(nn.Conv1d, Spectral(6, 4), 6),
        lambda: Data((real(4, 1, 16),), (real(4, 1, 16),)),
        F.mse_loss,
    ),
    "fourier operator of images": Case(
        lambda: FourierOperator(nn.Conv2d, Spectral2d(5, 2), 5),
        lambda: Data((real(3, 1, 6, 8),), (real(3, 1, 6, 8),)),
        F.mse_loss,
    ),
    "state space": Case(
        lambda: nn.Sequential(StateSpace(4, 3), StateSpace(4, 3)),
        lambda: Data((real(3, 4, 10),), (real(3, 4, 10),)),
        F.mse_loss,
    ),
}
