"""Reads LIBSVM's text format: a sample a line, "label index:value index:value ...", with indices ascending from 1."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..task import Data, TaskError

_NUMBER = rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_LINE = re.compile(rb"[ \t]*%s(?:[ \t]+\d{1,9}:%s)*[ \t]*(?:#.*)?\r?" % (_NUMBER, _NUMBER))
_PAIR = re.compile(rb"\d{1,9}:%s" % _NUMBER)
_BLANK = re.compile(rb"[ \t\r]*(?:#.*)?")
MAX_CLASSES = 1000
_MAX_QUOTED = 40  # characters of a malformed line that an error shows


@dataclass(frozen=True)
class SparseSamples:
    """The n samples of a file, as compressed sparse rows.

    labels: [n]. indices, values: those of all rows together, [entries]; row i has entries starts[i] to starts[i + 1].
    starts: [n + 1]. lines: the number of each row's line in the file, [n].
    """

    path: Path
    labels: NDArray[np.float64]
    starts: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: NDArray[np.float64]
    lines: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def features(self) -> int:
        """The largest index of a feature."""
        return int(self.indices.max(initial=0))

    @property
    def max_entries(self) -> int:
        """The number of entries of the longest row."""
        return int(np.diff(self.starts).max(initial=0))

    def counts(self, features: int) -> NDArray[np.int64]:
        """Return the number of rows that have each index: [features + 1]."""
        return np.bincount(self.indices, minlength=features + 1)

    def classes(self) -> list[float]:
        """Return the distinct labels, ascending; TaskError unless there are 2 to MAX_CLASSES."""
        labels = [float(label) for label in np.unique(self.labels)]
        if len(labels) < 2 or len(labels) > MAX_CLASSES:
            facts = f"label {labels[0]:g} alone" if len(labels) == 1 else f"{len(labels)} different labels"
            raise TaskError(
                f"{self.path} has {facts}; a classification has 2 to {MAX_CLASSES}", fix="check the file's labels"
            )
        return labels

    def pad(self, entries: int) -> tuple[Tensor, Tensor]:
        """Return indices (int64) and values (float32), both [n, entries]; short rows end with index 0 and value 0."""
        sizes = np.diff(self.starts)
        column = np.arange(len(self.indices)) - np.repeat(self.starts[:-1], sizes)
        row = np.repeat(np.arange(len(self)), sizes)
        indices, values = np.zeros((len(self), entries), np.int64), np.zeros((len(self), entries), np.float32)
        indices[row, column], values[row, column] = self.indices, self.values
        return torch.from_numpy(indices), torch.from_numpy(values)

    def data(self, classes: list[float], *, features: int, entries: int) -> Data:
        """Return padded indices and values [n, entries], and the place of each label among `classes`, int64 [n].

        TaskError names the line that has a label or an index which the training samples do not have.
        """
        known = np.isin(self.labels, classes)
        if not known.all():
            at = int(np.argmin(known))
            listed = ", ".join(f"{label:g}" for label in classes[:10])
            raise self._wrong(at, f"label {self.labels[at]:g} is none of the training file's: {listed}")
        far = self.indices > features
        if far.any():
            at = int(np.searchsorted(self.starts, int(np.argmax(far)), side="right")) - 1
            index = int(self.indices[np.argmax(far)])
            raise self._wrong(at, f"index {index}; there are {features} features", fix=f"features={index}")
        indices, values = self.pad(entries)
        return Data((indices, values), (torch.from_numpy(np.searchsorted(classes, self.labels)),))

    def _wrong(self, row: int, facts: str, fix: str = "correct the file") -> TaskError:
        return TaskError(f"{self.path}:{self.lines[row]}: {facts}", fix=fix)


def read_libsvm(path: Path) -> SparseSamples:
    """Return the samples of a file; TaskError names a malformed line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}", fix="--data libsvm:FILE") from error
    kept = [(number, line) for number, line in enumerate(lines, 1) if not _BLANK.fullmatch(line)]
    for number, line in kept:
        if not _LINE.fullmatch(line):
            raise TaskError(
                f"{path}:{number}: {_describe_fault(line)}", fix="write it as: label index:value index:value ..."
            )
    if not kept:
        raise TaskError(f"{path} has no samples", fix="check --data")
    return _parse(path, [line.partition(b"#")[0] for _, line in kept], np.array([number for number, _ in kept]))


def _parse(path: Path, lines: list[bytes], numbers: NDArray[np.int64]) -> SparseSamples:
    """Return the samples of lines that have the right form, parsing all numbers at once. numbers: of the lines."""
    sizes = np.array([line.count(b":") for line in lines], np.int64)
    flat = np.array(b" ".join(lines).replace(b":", b" ").split(), dtype=np.float64)
    begins = np.concatenate([[0], np.cumsum(2 * sizes + 1)])[:-1]
    entries = np.delete(flat, begins).reshape(-1, 2)
    rows = SparseSamples(
        path,
        flat[begins],
        np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]),
        entries[:, 0].astype(np.int64),
        entries[:, 1],
        numbers,
    )
    _check_ascending(rows)
    for what, column in (("label", rows.labels), ("value", rows.values)):
        if not np.isfinite(column).all():
            at = int(np.argmin(np.isfinite(column)))
            row = at if what == "label" else int(np.searchsorted(rows.starts, at, side="right")) - 1
            raise rows._wrong(row, f"a {what} that is too large for a number")
    return rows


def _check_ascending(rows: SparseSamples) -> None:
    """Raise TaskError where an index is 0, or not above the one before it in its row."""
    before = np.concatenate([np.zeros(1, np.int64), rows.indices])[:-1]
    before[rows.starts[:-1][np.diff(rows.starts) > 0]] = 0  # the first of a row
    wrong = rows.indices <= before
    if wrong.any():
        at = int(np.argmax(wrong))
        row, index = int(np.searchsorted(rows.starts, at, side="right")) - 1, int(rows.indices[at])
        facts = "index 0; features are numbered from 1" if index == 0 else f"index {index} comes after {before[at]}"
        raise rows._wrong(row, facts, fix="let the indices of a line ascend from 1")


def _describe_fault(line: bytes) -> str:
    """Return what is wrong with a malformed line."""
    words = line.partition(b"#")[0].split()
    if not words or not re.fullmatch(_NUMBER, words[0]):
        return f"it begins with {_quote(words[0] if words else line)}, which is no label"
    wrong = next((word for word in words[1:] if not _PAIR.fullmatch(word)), None)
    return f"{_quote(line)} is no sample" if wrong is None else f"{_quote(wrong)} is no index:value"


def _quote(text: bytes) -> str:
    line = text.decode("utf-8", "replace")
    return repr(line if len(line) <= _MAX_QUOTED else line[:_MAX_QUOTED] + "...")
