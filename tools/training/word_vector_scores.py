"""Scores of trained word vectors: analogies and similarity, as plain data."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...models.tasks.word2vec import WordTask
from ...models.tasks.word_vectors import Score, WordVectors, read_judgements, read_questions
from ...errors import BadInput, CheckpointError
from ..task import weight_source as weights
from ..task.load_task import TaskSpec, blame, load_task

ALL = "all"


def trained_vectors(model: str, data: str | None, source: Path) -> tuple[WordVectors, bool]:
    """The vectors of a task's words, and whether those are in lower case.

    source: a run folder, a checkpoint or a file. BadInput where the task is no word2vec on a text, CheckpointError
    where the weights are not its own.
    """
    task = load_task(TaskSpec(model, data))
    if not isinstance(task, WordTask) or not task.words:
        what = "no word2vec" if not isinstance(task, WordTask) else "a word2vec without a text"
        raise BadInput("E328", f"{model} is {what}", fix="cutset.models:word2vec --data text:FILE, as it was trained")
    with weights.opened(source) as found:
        shape = found.shape(task.table)
        if shape is None or shape[0] != len(task.words):
            facts = f"{source} has no table {task.table} of {len(task.words)} words; its shape is {shape}"
            raise CheckpointError("E809", facts, fix="the text and the arguments that it was trained with")
        table = found.part(task.table, tuple((0, size) for size in shape), shape)
    return WordVectors(task.words, table), task.lower


def analogies(vectors: WordVectors, path: Path, *, lower: bool) -> dict[str, dict[str, int]]:
    """Right, asked and unknown of each section of a file of questions, and of all."""
    with blame("E329", str(path)):
        scores = vectors.analogies(read_questions(path, lower=lower))
    return {name: asdict(score) for name, score in {**scores, ALL: sum(scores.values(), Score())}.items()}


def similar(vectors: WordVectors, path: Path, *, lower: bool) -> dict[str, Any]:
    """Spearman's correlation with the judgements in a file; None where too few pairs are known."""
    with blame("E329", str(path)):
        judged = read_judgements(path, lower=lower)
    rank, known = vectors.similarity(judged)
    return {"spearman": rank, "known": known, "pairs": len(judged)}
