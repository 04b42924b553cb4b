"""Log-energies of a mel filter bank, by which recognisers of speech hear: 40 bands of 25 ms of sound, every 10 ms."""

from functools import lru_cache

import torch
from torch import Tensor

BANDS = 40
WINDOW_S, HOP_S = 0.025, 0.010
SPECTRUM = 512  # samples that a spectrum is of, the window's and zeros, so that narrow bands have a bin
FLOOR = 1e-8  # energy of silence


def measure_log_energies(samples: Tensor, rate: int) -> Tensor:
    """Return the log-energies [frames, BANDS] of sound [s] with `rate` samples a second."""
    window, hop = (max(1, round(seconds * rate)) for seconds in (WINDOW_S, HOP_S))
    size = max(SPECTRUM, window)
    spectrum = torch.stft(
        samples, size, hop, window, torch.hann_window(window), center=True, pad_mode="constant", return_complex=True
    )
    return torch.log(spectrum.abs().square().T @ _filters(rate, size) + FLOOR)


@lru_cache(maxsize=4)
def _filters(rate: int, size: int) -> Tensor:
    """Return the weight of each frequency in each band, [size // 2 + 1, BANDS]: triangles, evenly spaced in mel.

    mel = 2595 log10(1 + f / 700) (O'Shaughnessy, "Speech Communication", 1987).
    """
    highest = 2595 * torch.log10(torch.tensor(1 + rate / 2 / 700))
    corners = 700 * (10 ** (torch.linspace(0, float(highest), BANDS + 2) / 2595) - 1)
    frequencies = torch.linspace(0, rate / 2, size // 2 + 1).unsqueeze(1)
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (frequencies - left) / (middle - left), (right - frequencies) / (right - middle)
    return torch.minimum(rising, falling).clamp(min=0)
