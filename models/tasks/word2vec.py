"""`word2vec`: word vectors by skip-gram with negative sampling (Mikolov et al., NIPS 2013), from a text file.

Both tables have sparse gradients: a step touches only the rows of its own words.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from ..readers.data_sources import Reader, parse_data
from ..readers.skipgram_text import Vocabulary, Windows, read_skip_grams, read_vocabulary
from ..task import Data, Task, TaskError

PLANNED_WORDS = 30_000  # size of the vocabulary where there is no text: such a task is only planned
TABLE = "centre.weight"  # the table of word vectors; the other one is needed only for training


@dataclass(frozen=True)
class WordTask(Task):
    """A task that trains word vectors.

    words: in the order of the rows of the parameter named `table`. lower: whether the text was lower-cased.
    """

    words: tuple[str, ...] = ()
    table: str = TABLE
    lower: bool = True


class SkipGram(nn.Module):
    """The model: two tables [words, dimension], of the vectors of centre words and of context words.

    Shapes: b samples, k negatives of each.
    """

    def __init__(self, words: int, dimension: int) -> None:
        super().__init__()
        self.centre = nn.Embedding(words, dimension, sparse=True)
        self.context = nn.Embedding(words, dimension, sparse=True)
        nn.init.uniform_(self.centre.weight, -0.5 / dimension, 0.5 / dimension)
        nn.init.zeros_(self.context.weight)

    def forward(self, centre: Tensor, context: Tensor, negatives: Tensor) -> Tensor:
        """Return the scores of the context and the negatives [b, 1 + k].

        centre [b], context [b] and negatives [b, k] are word numbers.
        """
        others = torch.cat([context.unsqueeze(1), negatives], 1).long()  # [b, 1 + k]
        vectors = self.centre(centre.long()).unsqueeze(2)  # [b, dimension, 1]
        return torch.bmm(self.context(others), vectors).squeeze(2)


def word2vec(
    data: str | None = None,
    dimension: int = 100,
    window: int = 5,
    negatives: int = 5,
    min_count: int = 5,
    sample: float = 1e-3,
    lower: bool = True,
    samples: int = 1 << 21,
    seed: int = 0,
) -> Task:
    """Train word vectors by skip-gram with negative sampling, from a text.

    Accuracy is the fraction of samples whose context word scores above all negatives. data: "text:FILE", in UTF-8;
    every 20th line is for tests. dimension: of the vectors. window, negatives, sample, seed: see `Windows`. samples:
    their largest number. min_count: words that occur less often are left out. lower: convert the text to lower case.
    """
    _check(dimension=dimension, window=window, negatives=negatives, min_count=min_count, samples=samples)
    if not 0 <= sample < float("inf"):
        raise TaskError(f"sample is {sample!r}; it must be 0 or more", fix="sample=1e-3")
    windows = Windows(window, negatives, sample, samples, seed)
    path = None if data is None else parse_data(data, {"text": "FILE"})[1]
    known = None if path is None else _vocabulary(path, min_count, lower)
    count = PLANNED_WORDS if known is None else len(known)

    def example(batch: int) -> Data:
        one = torch.zeros(batch, dtype=torch.int32)
        return Data((one, one.clone(), torch.zeros(batch, negatives, dtype=torch.int32)), ())

    return WordTask(
        name="word2vec",
        model=lambda: SkipGram(count, dimension),
        loss=negative_sampling,
        example=example,
        data=_reader(path, known, windows, lower),
        correct=above,
        batch=512,
        words=() if known is None else known.words,
        lower=lower,
    )


def negative_sampling(scores: Tensor) -> Tensor:
    """Return the mean over samples of -log s(context) - sum of log s(-negative), with s the logistic function.

    scores: [b, 1 + k], those of the context first.
    """
    signs = scores.new_ones(scores.shape[1])
    signs[0] = -1
    return nn.functional.softplus(scores * signs).sum(1).mean()


def above(scores: Tensor) -> int:
    """Count the samples whose context word scores above every negative; scores [b, 1 + k]."""
    return int((scores[:, 0] > scores[:, 1:].amax(1)).sum())


def _check(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TaskError(f"{name} is {value!r}; it must be a whole number of at least 1", fix=f"{name}=5")


@lru_cache(maxsize=2)
def _vocabulary(path: Path, min_count: int, lower: bool) -> Vocabulary:
    return read_vocabulary(path, min_count=min_count, lower=lower)


def _reader(path: Path | None, known: Vocabulary | None, windows: Windows, lower: bool) -> Reader:
    def read(split: str) -> Data:
        if path is None or known is None:
            raise TaskError("task word2vec needs a text", fix="--data text:FILE")
        if split not in ("train", "test"):
            raise TaskError(f"split {split!r} is not known; known: train, test")
        return read_skip_grams(path, known, windows, lower=lower, test=split == "test")

    return read
