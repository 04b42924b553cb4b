"""The mel filter bank."""

import math

import pytest
import torch

from cutset.models.readers.filter_bank import BANDS, measure_log_energies

RATE = 8000


def tone(hertz: float, seconds: float = 0.5) -> torch.Tensor:
    return torch.sin(math.tau * hertz * torch.arange(round(seconds * RATE)) / RATE)


@pytest.mark.parametrize("hertz", [100, 440, 1000, 3500])
def test_a_tone_is_in_the_band_of_its_pitch(hertz):
    mel = 2595 * math.log10(1 + hertz / 700) / (2595 * math.log10(1 + RATE / 2 / 700)) * (BANDS + 1)
    loudest = measure_log_energies(tone(hertz), RATE)[25].argmax()
    assert float(loudest) + 1 == pytest.approx(mel, abs=1)


def test_frames_come_every_ten_milliseconds():
    assert measure_log_energies(tone(440), RATE).shape == (51, BANDS)
    assert measure_log_energies(tone(440)[:10], RATE).shape == (1, BANDS)  # shorter than a window


def test_twice_the_amplitude_adds_the_log_of_four():
    quiet, loud = (measure_log_energies(factor * tone(1000), RATE)[25].amax() for factor in (1, 2))
    assert float(loud - quiet) == pytest.approx(math.log(4), abs=1e-4)


def test_silence_is_finite_and_every_band_hears_something():
    assert bool(measure_log_energies(torch.zeros(800), RATE).isfinite().all())
    noise = torch.randn(8000, generator=torch.Generator().manual_seed(0))
    assert float(measure_log_energies(noise, RATE).mean(0).amin()) > -5
