"""Evaluates word vectors: nearest words, analogies (Mikolov et al., 2013), and human judgements of similarity."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..task import TaskError

PART = 256  # questions that are answered at once


@dataclass(frozen=True)
class AnalogyQuestion:
    """An analogy: the words (a, b, c, d) say that a is to b as c is to d. section: the title above it in the file."""

    section: str
    words: tuple[str, str, str, str]


@dataclass(frozen=True)
class Score:
    """A score on questions: how many were asked, and answered right; unknown: skipped for a word without a vector."""

    right: int = 0
    asked: int = 0
    unknown: int = 0

    def __add__(self, other: "Score") -> "Score":
        return Score(self.right + other.right, self.asked + other.asked, self.unknown + other.unknown)


class WordVectors:
    """Words and their vectors [words, dimension], which are compared by cosine."""

    def __init__(self, words: Sequence[str], vectors: Tensor) -> None:
        self.words = list(words)
        self._place = {word: number for number, word in enumerate(self.words)}
        if vectors.shape[0] != len(self.words):
            raise ValueError(f"{vectors.shape[0]} vectors for {len(self.words)} words")
        self._unit = torch.nn.functional.normalize(vectors.detach().to(torch.float32), dim=1)

    def __contains__(self, word: str) -> bool:
        return word in self._place

    def nearest(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """Return the words most similar to `word`, with their cosines; TaskError if it is not in the vocabulary."""
        if word not in self:
            raise TaskError(
                f"the word {word!r} is not in the vocabulary", fix="name a word that is more frequent in the text"
            )
        own = self._place[word]
        cosines = self._unit @ self._unit[own]
        cosines[own] = -torch.inf
        best = cosines.topk(min(count, len(self.words) - 1))
        return [
            (self.words[place], cosine)
            for place, cosine in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def analogies(self, questions: Sequence[AnalogyQuestion]) -> dict[str, Score]:
        """Score each section: how often d is the nearest word to b - a + c, apart from a, b and c themselves."""
        scores: dict[str, Score] = {}
        known = [q for q in questions if all(word in self for word in q.words)]
        for question in questions:
            unknown = not all(word in self for word in question.words)
            scores[question.section] = scores.get(question.section, Score()) + Score(unknown=int(unknown))
        for start in range(0, len(known), PART):
            part = known[start : start + PART]
            for question, right in zip(part, self._answers(part), strict=True):
                scores[question.section] += Score(right=int(right), asked=1)
        return scores

    def _answers(self, questions: Sequence[AnalogyQuestion]) -> list[bool]:
        places = torch.tensor([[self._place[word] for word in q.words] for q in questions])  # [questions, 4]
        a, b, c = (self._unit[places[:, i]] for i in range(3))
        cosines = (b - a + c) @ self._unit.T  # [questions, words]
        cosines.scatter_(1, places[:, :3], -torch.inf)
        right: list[bool] = (cosines.argmax(1) == places[:, 3]).tolist()
        return right

    def similarity(self, judgements: Sequence[tuple[str, str, float]]) -> tuple[float | None, int]:
        """Return Spearman's correlation of cosines with judgements, and the number of pairs whose words are known.

        The correlation is None if fewer than two pairs are known, or if all cosines or all judgements are equal.
        """
        known = [(a, b, score) for a, b, score in judgements if a in self and b in self]
        cosines = [float(self._unit[self._place[a]] @ self._unit[self._place[b]]) for a, b, _ in known]
        return spearman(cosines, [score for *_, score in known]), len(known)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the correlation of the ranks; equal values share their mean rank. None where it is undefined."""
    if len(first) < 2 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(torch.corrcoef(torch.stack([_ranks(first), _ranks(second)]))[0, 1])


def _ranks(values: Sequence[float]) -> Tensor:
    flat = torch.tensor(list(values), dtype=torch.float64)
    _, group, counts = torch.unique(flat, return_inverse=True, return_counts=True)
    ranks: Tensor = counts.cumsum(0).to(torch.float64) - (counts - 1) / 2
    return ranks[group]


def read_questions(path: Path, *, lower: bool = True) -> list[AnalogyQuestion]:
    """Read a file like questions-words.txt: ": section" lines, else four words; TaskError names a malformed line."""
    questions, section = list[AnalogyQuestion](), ""
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.startswith(":"):
            section = line.removeprefix(":").strip()
            continue
        words = (line.lower() if lower else line).split()
        if not words:
            continue
        if len(words) != 4:
            raise TaskError(f"{path}:{number}: {len(words)} words; a question has four", fix="a b c d, on each line")
        questions.append(AnalogyQuestion(section, (words[0], words[1], words[2], words[3])))
    return questions


def read_judgements(path: Path, *, lower: bool = True) -> list[tuple[str, str, float]]:
    """Read a file like wordsim353.tsv: two words and a number, "#" for comments; TaskError names a malformed line."""
    judgements = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        parts = (line.lower() if lower else line).split()
        if not parts or line.startswith("#"):
            continue
        try:
            first, second, score = parts
            judgements.append((first, second, float(score)))
        except ValueError as error:
            facts = f"{path}:{number}: {line[:60]!r} is not two words and a number"
            raise TaskError(facts, fix="love sex 6.77") from error
    return judgements


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}", fix="check the path") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is no UTF-8 text: {error.reason} at byte {error.start}", fix="convert it") from error
