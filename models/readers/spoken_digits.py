"""Reads takes of the Free Spoken Digit Dataset, from its recordings or from a file with their filter-bank energies.

Recordings are named DIGIT_SPEAKER_TAKE.wav, as 7_theo_32.wav, in the folder or in `recordings` in it
(github.com/Jakobovski/free-spoken-digit-dataset, CC BY-SA 4.0). A file of energies is NAME.npz with arrays X, `FRAMES`
frames of `BANDS` log-energies of each take, y, its digit, and speaker. What is damaged raises a TaskError that names
the file and the fix.
"""

import re
import wave
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..task import TaskError
from .filter_bank import BANDS, measure_log_energies

FRAMES = 32  # of each take, however long it is
DIGITS = 10
SAMPLE_BYTES = 2
_NAME = re.compile(r"(\d)_([^_]+)_(\d+)\.wav", re.IGNORECASE)
DOWNLOAD_AGAIN = "download it again; it is damaged or not the file its name says"
SOURCE = "name the folder of the Free Spoken Digit Dataset: --data fsdd:DIR"


@dataclass(frozen=True)
class Takes:
    """Takes of spoken digits: log-energies [n, frames, bands] as they were measured, digits [n], speakers [n]."""

    energies: Tensor
    digits: Tensor
    speakers: tuple[str, ...]

    def of(self, speakers: set[str]) -> "Takes":
        """Return the takes of some speakers."""
        chosen = [number for number, name in enumerate(self.speakers) if name in speakers]
        return Takes(self.energies[chosen], self.digits[chosen], tuple(self.speakers[number] for number in chosen))


@lru_cache(maxsize=2)
def read_takes(folder: Path) -> Takes:
    """Return all takes of a folder, in order of speaker, digit and take; a file of energies comes before recordings."""
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        raise TaskError(f"data folder {folder} {kind}", fix=SOURCE)
    files, places = sorted(folder.glob("*.npz")), [folder, folder / "recordings"]
    recordings = [path for place in places for path in sorted(place.glob("*.wav"))]
    if not files and not recordings:
        raise TaskError(f"{folder} has no recordings such as 7_theo_32.wav, here or in recordings/", fix=SOURCE)
    takes = _read_energies(files[0]) if files else _read_recordings(recordings)
    _demand_all_digits(takes, files[0] if files else recordings[0].parent)
    return takes


def _demand_all_digits(takes: Takes, place: Path) -> None:
    """Raise TaskError if some speaker lacks a digit, as after a download that broke off, or if there is but one."""
    for name in sorted(set(takes.speakers)):
        missing = sorted(set(range(DIGITS)) - set(takes.of({name}).digits.tolist()))
        if missing:
            facts = f"{place} has no takes of the digit {missing[0]} by {name}"
            raise TaskError(facts, fix="download the data set again; a part of it is missing")
    if len(set(takes.speakers)) < 2:
        facts = f"{place} has takes of one speaker; tests need another one than training"
        raise TaskError(facts, fix="download the data set again; a part of it is missing")


def _read_energies(path: Path) -> Takes:
    """Return the takes of a file of energies."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            energies, digits, speakers = arrays["X"], arrays["y"], arrays["speaker"]
    except KeyError as error:
        facts = f"{path} lacks an array X, y or speaker: {error.args[0]}"
        raise TaskError(facts, fix=DOWNLOAD_AGAIN) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise TaskError(f"{path} cannot be read: {error}", fix=DOWNLOAD_AGAIN) from error
    count = len(digits)
    if energies.dtype.kind != "f" or energies.size != count * FRAMES * BANDS or speakers.shape != (count,) or not count:
        shapes = f"X {energies.dtype} {energies.shape}, y {digits.shape}, speaker {speakers.shape}"
        facts = f"{path} has {shapes}; expected {FRAMES} x {BANDS} energies, a digit and a speaker of each take"
        raise TaskError(facts, fix=DOWNLOAD_AGAIN)
    values = torch.from_numpy(energies.astype(np.float32)).reshape(count, FRAMES, BANDS)
    if not bool(values.isfinite().all()):
        raise TaskError(f"{path} has energies that are not finite", fix=DOWNLOAD_AGAIN)
    if digits.dtype.kind not in "iu" or not bool(((digits >= 0) & (digits < DIGITS)).all()):
        raise TaskError(f"{path} has other digits than 0 to 9", fix=DOWNLOAD_AGAIN)
    return Takes(values, torch.from_numpy(digits.astype(np.int64)), tuple(str(name) for name in speakers))


def _read_recordings(paths: list[Path]) -> Takes:
    """Return the takes of recordings, with the energies of each stretched to `FRAMES` frames."""
    found = []
    for path in paths:
        name = _NAME.fullmatch(path.name)
        if name is None:
            facts = f"{path}: the name is not DIGIT_SPEAKER_TAKE.wav, as 7_theo_32.wav"
            raise TaskError(facts, fix="move other recordings out of the folder")
        found.append((name[2], int(name[1]), int(name[3]), path))
    found.sort()
    energies = [_stretch(measure_log_energies(*_read_wave(path))) for *_, path in found]
    digits = torch.tensor([digit for _, digit, *_ in found])
    return Takes(torch.stack(energies), digits, tuple(speaker for speaker, *_ in found))


def _stretch(energies: Tensor) -> Tensor:
    """Return energies [frames, bands] as [FRAMES, bands], interpolated over time."""
    rows = nn.functional.interpolate(energies.T.unsqueeze(0), FRAMES, mode="linear", align_corners=True)
    return rows[0].T


def _read_wave(path: Path) -> tuple[Tensor, int]:
    """Return the samples [s] of a recording, from -1 to 1, and its samples per second."""
    try:
        with wave.open(str(path), "rb") as file:
            shape, count = (file.getnchannels(), file.getsampwidth()), file.getnframes()
            rate, content = file.getframerate(), file.readframes(count)
    except (OSError, EOFError, wave.Error) as error:
        raise TaskError(f"{path} cannot be read: {str(error) or 'it ends too early'}", fix=DOWNLOAD_AGAIN) from error
    if shape != (1, SAMPLE_BYTES):
        facts = f"{path} has {shape[0]} channels of {8 * shape[1]} bits, expected one of 16"
        raise TaskError(facts, fix=DOWNLOAD_AGAIN)
    if len(content) != count * SAMPLE_BYTES or not count:
        facts = f"{path}: expected {count * SAMPLE_BYTES} bytes of sound, found {len(content)}"
        raise TaskError(facts, fix=DOWNLOAD_AGAIN)
    samples: NDArray[np.int16] = np.frombuffer(content, dtype="<i2")
    return torch.from_numpy(samples.astype(np.float32)) / 2**15, rate
