"""Scores of trained word vectors: analogies and similarity, as plain data."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import BadInput, CheckpointError
from ...models.tasks.word2vec import WordTask
from ...models.tasks.word_vectors import Score, WordVectors, read_judgements, read_questions
from ..blame import blame
from ..task import weight_source as weights
from ..task.load_task import TaskSpec, load_task

ALL = "all"


def load_word_vectors(model: str, data: str | None, source: Path) -> tuple[WordVectors, bool]:
    """Return the vectors of a task's words, and whether the words are in lower case.

    Args:
        source: a run folder, a checkpoint or a safetensors file.

    Raises:
        BadInput: E328, the task is not a word2vec task on a text.
        CheckpointError: E809, the weights are not those of the task.
    """
    task = load_task(TaskSpec(model, data))
    if not isinstance(task, WordTask) or not task.words:
        what = "not a word2vec task" if not isinstance(task, WordTask) else "a word2vec task without a text"
        raise BadInput("E328", f"{model} is {what}", fix="cutset.models:word2vec --data text:FILE, as it was trained")
    with weights.open_weights(source) as trained:
        shape = trained.shape(task.table)
        if shape is None or shape[0] != len(task.words):
            facts = f"{source} has no table {task.table} of {len(task.words)} words; its shape is {shape}"
            raise CheckpointError("E809", facts, fix="the text and the arguments that it was trained with")
        table = trained.read_box(task.table, tuple((0, size) for size in shape), shape)
    return WordVectors(task.words, table), task.lower


def score_analogies(vectors: WordVectors, path: Path, *, lower: bool) -> dict[str, dict[str, int]]:
    """Return counts of right answers, questions asked and unknown words, for each section of a file and for all."""
    with blame("E329", str(path)):
        scores = vectors.analogies(read_questions(path, lower=lower))
    return {name: asdict(score) for name, score in {**scores, ALL: sum(scores.values(), Score())}.items()}


def score_similarity(vectors: WordVectors, path: Path, *, lower: bool) -> dict[str, Any]:
    """Return Spearman's correlation with the judgements in a file; None if too few pairs are known."""
    with blame("E329", str(path)):
        judged = read_judgements(path, lower=lower)
    rank, known = vectors.similarity(judged)
    return {"spearman": rank, "known": known, "pairs": len(judged)}
