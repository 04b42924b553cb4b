"""`logistic`: logistic regression on sparse samples; its weights are rows of a table, so that only touched rows travel.

The penalty lambda / 2 |w|^2 would touch every row in every step. As in Niu et al., "Hogwild!", 2011, section 2, each
sample carries its part of it instead: lambda / 2 times the sum over its features j of n / d_j w_j^2, where d_j of the n
training samples have feature j. The mean of these parts is the whole penalty, so the objective is the same.
"""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from ..readers.data_sources import Reader, parse_data
from ..readers.libsvm import SparseSamples, read_libsvm
from ..task import Data, Task, TaskError
from .float64 import to_float64

# Shapes: b samples, e entries of a sample, c columns of the table, one of which is enough for two classes


class Logistic(nn.Module):
    """The model: a table with a row of weights [c] for each feature; row 0 is for padding.

    shares [features + 1]: n / d_j of each feature j.
    """

    shares: Tensor

    def __init__(self, shares: Tensor, columns: int, *, l2: float, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Embedding(len(shares), columns, padding_idx=0, sparse=True)
        nn.init.zeros_(self.weight.weight)
        self.bias = nn.Parameter(torch.zeros(columns)) if bias else None
        self.register_buffer("shares", torch.empty(len(shares)).copy_(shares))
        self.l2 = l2

    def forward(self, indices: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores [b, c] and each sample's part of the penalty [b], from indices and values [b, e]."""
        rows = self.weight(indices)  # [b, e, c]
        scores = (rows * values.unsqueeze(-1)).sum(1)
        penalty = 0.5 * self.l2 * (self.shares[indices] * rows.square().sum(-1)).sum(1)
        return (scores if self.bias is None else scores + self.bias), penalty


def logistic(
    data: str | None = None,
    features: int | None = None,
    entries: int | None = None,
    l2: float | None = None,
    bias: bool = False,
    double: bool = False,
) -> Task:
    """Train a logistic regression. On a9a, 20 epochs of Adagrad at 0.1 end within 1e-3 of the minimum.

    data: "libsvm:FILE". The test samples are read from FILE.t, or, if the name of FILE ends in "train", from the file
    whose name ends in "test"; without such a file the training samples are tested. features: the largest index.
    entries: the largest number of entries of a sample. Both are by default as in the files. l2: lambda of the penalty
    lambda / 2 |w|^2, by default 1 / n. bias: add a bias, which has no penalty. double: compute in float64.
    """
    files = None if data is None else _read_files(parse_data(data, {"libsvm": "FILE"})[1])
    if files is not None:
        features = max(rows.features for rows in files) if features is None else features
        entries = max(rows.max_entries for rows in files) if entries is None else entries
    features, entries = 123 if features is None else features, 14 if entries is None else entries  # as a9a has them
    _check(files, features, entries, l2)
    classes = 2 if files is None else len(files[0].classes())
    shares = torch.ones(features + 1) if files is None else _shares(files[0], features)
    lam = (1 / len(files[0]) if files is not None else 0.0) if l2 is None else l2
    columns = 1 if classes == 2 else classes

    def example(batch: int) -> Data:
        return Data(
            (torch.zeros(batch, entries, dtype=torch.int64), torch.zeros(batch, entries)),
            (torch.zeros(batch, dtype=torch.int64),),
        )

    task = Task(
        name="logistic",
        model=lambda: Logistic(shares, columns, l2=lam, bias=bias),
        loss=log_loss,
        example=example,
        data=_reader(files, features, entries),
        correct=count_correct,
        batch=32,
        epochs=5,
    )
    return to_float64(task) if double else task


def log_loss(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """Return the mean over the samples of -log p(label) plus the sample's part of the penalty: a scalar."""
    scores, penalty = outputs
    if scores.shape[1] > 1:
        return nn.functional.cross_entropy(scores, labels) + penalty.mean()
    return nn.functional.softplus(scores[:, 0] * (1 - 2 * labels)).mean() + penalty.mean()


def count_correct(scores: Tensor, labels: Tensor) -> int:
    """Count the samples whose label [b] has the highest score [b, c]; with one column, of two classes."""
    predictions = scores.argmax(1) if scores.shape[1] > 1 else (scores[:, 0] > 0).to(labels.dtype)
    return int((predictions == labels).sum())


def _shares(rows: SparseSamples, features: int) -> Tensor:
    counts = torch.from_numpy(rows.counts(features)).to(torch.float32)
    shares = len(rows) / counts.clamp(min=1)
    shares[0] = 0.0  # padding
    return shares


@lru_cache(maxsize=2)
def _read_files(path: Path) -> tuple[SparseSamples, SparseSamples]:
    """Return the training samples, and the test samples, from the file beside it if there is one."""
    train = read_libsvm(path)
    beside = [path.with_name(path.name + ".t")]
    if path.name.endswith("train"):
        beside.append(path.with_name(path.name.removesuffix("train") + "test"))
    test = next((other for other in beside if other.is_file()), None)
    return train, train if test is None else read_libsvm(test)


def _check(files: tuple[SparseSamples, SparseSamples] | None, features: int, entries: int, l2: float | None) -> None:
    for name, value in (("features", features), ("entries", entries)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TaskError(f"{name} is {value!r}; it must be a whole number of at least 1", fix=f"{name}=123")
    longest = 0 if files is None else max(rows.max_entries for rows in files)
    if longest > entries:
        raise TaskError(f"a sample has {longest} entries; entries is {entries}", fix=f"entries={longest}")
    if l2 is not None and not 0 <= l2 < float("inf"):
        raise TaskError(f"l2 is {l2!r}; it must be 0 or more", fix="l2=1e-4")


def _reader(files: tuple[SparseSamples, SparseSamples] | None, features: int, entries: int) -> Reader:
    def read(split: str) -> Data:
        if files is None:
            raise TaskError(f"task logistic needs its {split} samples", fix="--data libsvm:FILE")
        if split not in ("train", "test"):
            raise TaskError(f"split {split!r} is not known; known: train, test")
        return files[split == "test"].data(files[0].classes(), features=features, entries=entries)

    return read
