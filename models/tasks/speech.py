"""`speech`, `fsdd`: the acoustic net of DistBelief (Dean et al., NIPS 2012, section 5), and one in miniature.

Both hear windows of 11 frames of 40 log-energies. Of the Free Spoken Digit Dataset a window's class is the digit that
its take is of and the part of the take that its middle frame is in: of `states` parts of one length, as recognisers
begin with before they have aligned anything. The last third of the speakers, by name, is heard in tests alone.
"""

from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..readers.data_sources import Reader, parse_data
from ..readers.filter_bank import BANDS
from ..readers.spoken_digits import DIGITS, FRAMES, Takes, read_takes
from ..readers.synthetic import synthetic_images
from ..task import Data, Task, TaskError, make_example_batches

WINDOW = 11  # frames
INPUTS = WINDOW * BANDS
HIDDEN, LAYERS = 2560, 4
STATES = 8192
SMALL, SMALL_LAYERS = 128, 2
FSDD = {"fsdd": "DIR"}


def speech(hidden: int = HIDDEN, data: str | None = None, states: int = 3) -> Task:
    """Train four layers of 2,560 logistic units and a softmax over 8,192 states.

    hidden: other numbers of units than the paper's. data: "fsdd:DIR"; without it the frames [440] are synthetic.
    states: into how many each digit is divided, of the first 10 x `states` of the softmax.
    """
    _check(states, STATES // DIGITS)
    return Task(
        name="speech",
        model=partial(acoustic_net, hidden),
        loss=F.cross_entropy,
        example=make_example_batches(((INPUTS,),), classes=STATES),
        data=synthetic_images((INPUTS,), STATES) if data is None else _open(data, states),
        batch=100,
    )


def fsdd(data: str | None = None, states: int = 1) -> Task:
    """Train two layers of 128 rectified units and a softmax over the digits to hear which one is spoken.

    3 epochs of Adagrad at 0.01 reach about 74 % of the windows of speakers who are not in training; at higher rates
    that hangs on the seed. data: "fsdd:DIR", the folder of the Free Spoken Digit Dataset; without it the task can be
    planned but not trained. states: of each digit.
    """
    _check(states, STATES // DIGITS)
    return Task(
        name="fsdd",
        model=partial(small_net, states),
        loss=F.cross_entropy,
        example=make_example_batches(((INPUTS,),), classes=DIGITS * states),
        data=_nowhere if data is None else _open(data, states),
        batch=100,
        epochs=3,
        rate_scale=0.5,
    )


def acoustic_net(hidden: int = HIDDEN) -> nn.Module:
    """Return the net from frames [b, 440] to scores [b, 8192]; as in the paper it has 41,777,152 parameters."""
    widths = [INPUTS, *[hidden] * LAYERS]
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.Sigmoid())]
    return nn.Sequential(*layers, nn.Linear(hidden, STATES))


def small_net(states: int) -> nn.Module:
    """Return the net from frames [b, 440] to scores [b, 10 x states]; with one state it has 74,250 parameters."""
    widths = [INPUTS, *[SMALL] * SMALL_LAYERS]
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(SMALL, DIGITS * states))


def _check(states: int, most: int) -> None:
    if isinstance(states, bool) or not isinstance(states, int) or not 1 <= states <= most:
        raise TaskError(f"states is {states!r}; it must be a whole number from 1 to {most}", fix="states=3")


def _nowhere(split: str) -> Data:
    raise TaskError(f"task fsdd needs its {split} samples", fix="--data fsdd:DIR")


def _open(data: str, states: int) -> Reader:
    """Return the reader of "fsdd:DIR"; the folder is not touched before a split is read."""
    folder = parse_data(data, FSDD)[1]

    def read(split: str) -> Data:
        if split not in ("train", "test"):
            raise TaskError(f"split {split!r} is not known; known: train, test")
        return _make_windows(_choose_speakers(folder, split), states)

    return read


def _choose_speakers(folder: Path, split: str) -> Takes:
    takes = read_takes(folder)
    names = sorted(set(takes.speakers))
    first = len(names) - max(1, len(names) // 3)
    return takes.of(set(names[:first] if split == "train" else names[first:]))


def _make_windows(takes: Takes, states: int) -> Data:
    """Return all windows of takes, [windows, 440], and their classes."""
    windows = _normalise(takes.energies).unfold(1, WINDOW, 1)  # [n, windows of a take, bands, WINDOW]
    middles = torch.arange(windows.shape[1]) + WINDOW // 2
    classes = takes.digits.unsqueeze(1) * states + middles * states // FRAMES
    return Data((windows.transpose(2, 3).reshape(-1, INPUTS),), (classes.reshape(-1),))


def _normalise(energies: Tensor) -> Tensor:
    """Take from each band of a take [n, frames, bands] its mean, what voice and microphone add; the deviation is 1."""
    centred = energies - energies.mean(1, keepdim=True)
    return centred / centred.std((1, 2), keepdim=True).clamp(min=1e-3)
