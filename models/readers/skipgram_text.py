"""Reads a text file as skip-gram samples with negative sampling (Mikolov et al., NIPS 2013).

The paper is "Distributed Representations of Words and Phrases and their Compositionality"; from it are the subsampling
of frequent words, the windows and the draw of negatives. The file is read line by line; memory is bounded by the
vocabulary and the number of samples.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..task import Data, TaskError

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|<unk>")
UNKNOWN = "<unk>"  # stands for left-out words in some texts; it is no word itself
CHUNK = 1 << 18  # words that are turned into samples at a time
TEST_EVERY = 20  # every 20th line is for tests
MAX_TEST_SAMPLES = 20_000
POWER = 0.75  # negatives are drawn with probabilities proportional to a word's count to this power
_REDRAWS = 16

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Vocabulary:
    """The words of a text, the most frequent first, and how often each occurs."""

    words: tuple[str, ...]
    counts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True)
class Windows:
    """How samples are drawn from a text.

    window: the largest distance of a context word from its centre, in words; each centre draws its own distance up to
    it. negatives: words drawn for each sample. sample: t of the paper: a word of frequency f is kept with probability
    sqrt(t / f); 0 keeps all. max_samples: if there are more, each is kept with the same probability. seed: random seed.
    """

    window: int = 5
    negatives: int = 5
    sample: float = 1e-3
    max_samples: int = 1 << 21
    seed: int = 0


def split_words(line: str, *, lower: bool = True) -> list[str]:
    """Split a line into its words, without punctuation."""
    words: list[str] = _WORD.findall(line.lower() if lower else line)
    return words


def read_vocabulary(path: Path, *, min_count: int, lower: bool) -> Vocabulary:
    """Count the words of a text and keep those that occur at least `min_count` times.

    TaskError if fewer than two are left.
    """
    counts: Counter[str] = Counter()
    for line in _lines(path):
        counts.update(split_words(line, lower=lower))
    counts.pop(UNKNOWN, None)
    kept = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
    if len(kept) < 2:
        raise TaskError(
            f"{path} has {len(kept)} words that occur at least {min_count} times; at least 2 are needed",
            fix="a longer text, or a smaller min_count",
        )
    return Vocabulary(tuple(kept), tuple(counts[word] for word in kept))


def read_skip_grams(path: Path, known: Vocabulary, windows: Windows, *, lower: bool, test: bool) -> Data:
    """Read the samples of the lines for training or for tests, as word numbers, int32.

    They are centre [n], context [n] and negatives [n, negatives]. Windows do not reach over the end of a line. The same
    arguments always give the same samples. TaskError if there are none.
    """
    place = {word: number for number, word in enumerate(known.words)}
    keep = _keep_probabilities(known, windows.sample)
    max_samples = min(windows.max_samples, MAX_TEST_SAMPLES) if test else windows.max_samples
    generator = np.random.default_rng([windows.seed, test])
    pairs: list[Ids] = []
    share, count = 1.0, 0
    for words, line in _chunks(path, place, lower=lower, test=test):
        kept = generator.random(len(words)) < keep[words]
        chunk_pairs = _pairs(words[kept], line[kept], windows.window, generator)
        pairs.append(chunk_pairs[generator.random(len(chunk_pairs)) < share])
        count += len(pairs[-1])
        while count > max_samples:  # earlier and later samples are thinned out alike
            pairs = [_thin_out(part, generator) for part in pairs]
            share, count = share / 2, sum(map(len, pairs))
    together = np.concatenate([np.zeros((0, 2), np.int64), *pairs])
    if not len(together):
        raise TaskError(
            f"{path} has no two words of the vocabulary beside each other in its lines for {_use(test)}",
            fix=f"a text of more lines (each {TEST_EVERY}th is for tests), or a smaller min_count",
        )
    negatives = _negatives(known, together[:, 1], windows.negatives, generator)
    centre, context = (torch.from_numpy(column.astype(np.int32)) for column in together.T)
    return Data((centre, context, torch.from_numpy(negatives.astype(np.int32))), ())


def _use(test: bool) -> str:
    return "tests" if test else "training"


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text; TaskError names a line that is not UTF-8."""
    number = 1
    try:
        with path.open("rb") as file:
            for line in file:
                yield line.decode()
                number += 1
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}", fix="--data text:FILE") from error
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{path}:{number}: byte {error.start + 1} of the line is no UTF-8 text",
            fix=f"iconv -f latin1 -t utf-8 {path}",
        ) from error


def _chunks(path: Path, place: dict[str, int], *, lower: bool, test: bool) -> Iterator[tuple[Ids, Ids]]:
    """Yield the numbers of the known words of some whole lines, and the number of each word's line: both [words]."""
    words: list[int] = []
    lines: list[int] = []
    for number, line in enumerate(_lines(path)):
        if (number % TEST_EVERY == TEST_EVERY - 1) != test:
            continue
        known = [place[word] for word in split_words(line, lower=lower) if word in place]
        words += known
        lines += [number] * len(known)
        if len(words) >= CHUNK:
            yield np.array(words, np.int64), np.array(lines, np.int64)
            words, lines = [], []
    yield np.array(words, np.int64), np.array(lines, np.int64)


def _keep_probabilities(known: Vocabulary, sample: float) -> NDArray[np.float64]:
    """Return the probability with which each word is kept (subsampling of frequent words): [words]."""
    counts = np.array(known.counts, np.float64)
    if sample <= 0:
        return np.ones_like(counts)
    kept: NDArray[np.float64] = np.minimum(1.0, np.sqrt(sample * counts.sum() / counts))
    return kept


def _pairs(words: Ids, line: Ids, window: int, generator: np.random.Generator) -> Ids:
    """Return centre and context of all windows, [pairs, 2], ordered by the position of the earlier of the two."""
    reach = generator.integers(1, window + 1, len(words))
    pairs, places = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)]
    for distance in range(1, min(window, len(words) - 1) + 1):
        together = line[:-distance] == line[distance:]
        ahead = np.flatnonzero(together & (reach[:-distance] >= distance))
        back = np.flatnonzero(together & (reach[distance:] >= distance))
        pairs += [
            np.stack([words[ahead], words[ahead + distance]], 1),
            np.stack([words[back + distance], words[back]], 1),
        ]
        places += [ahead, back]
    return np.concatenate(pairs)[np.argsort(np.concatenate(places), kind="stable")]


def _thin_out(pairs: Ids, generator: np.random.Generator) -> Ids:
    return pairs[generator.random(len(pairs)) < 0.5]


def _negatives(known: Vocabulary, context: Ids, count: int, generator: np.random.Generator) -> Ids:
    """Draw `count` words that are not the context, with probabilities proportional to count^0.75: [samples, count]."""
    weights = np.array(known.counts, np.float64) ** POWER
    ends = np.cumsum(weights) / weights.sum()
    drawn = _draw(ends, (len(context), count), generator)
    for _ in range(_REDRAWS):
        same = drawn == context[:, None]
        if not same.any():
            return drawn
        drawn[same] = _draw(ends, (int(same.sum()),), generator)
    return np.where(drawn == context[:, None], (drawn + 1) % len(known), drawn)  # of a very small vocabulary


def _draw(ends: NDArray[np.float64], shape: tuple[int, ...], generator: np.random.Generator) -> Ids:
    numbers = np.searchsorted(ends, generator.random(shape), side="right").astype(np.int64)
    return np.minimum(numbers, len(ends) - 1)
