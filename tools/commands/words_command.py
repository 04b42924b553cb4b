"""The command `cutset words`: what the vectors of a trained word2vec are good for."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import json_option
from .output import stdout_kept

if TYPE_CHECKING:
    from ...models.tasks.word_vectors import WordVectors


@click.command("words")
@click.argument("task")
@click.option("--data", metavar="text:FILE", help="The text that was trained on; its words are the vocabulary.")
@click.option(
    "--checkpoint",
    "source",
    type=click.Path(path_type=Path),
    default=Path("runs/last"),
    show_default=True,
    help="A run folder, the checkpoint in it, or a safetensors file with a plain state_dict.",
)
@click.option(
    "--questions",
    type=click.Path(dir_okay=False, path_type=Path),
    help='Analogies: four words a line, ": section" before each section, like questions-words.txt.',
)
@click.option(
    "--similarity",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Judgements of similarity: two words and a number a line, like WordSim-353.",
)
@click.option("--near", "near", multiple=True, metavar="WORD", help="Show the words nearest to this one.")
@json_option
def words(
    task: str,
    data: str | None,
    source: Path,
    questions: Path | None,
    similarity: Path | None,
    near: tuple[str, ...],
    as_json: bool,
) -> None:
    """Score the word vectors of TASK, a cutset.models:word2vec with the arguments that it was trained with."""
    from ..training.word_vector_scores import analogies, similar, trained_vectors

    if questions is None and similarity is None and not near:
        raise click.UsageError("give --questions, --similarity or --near")
    with stdout_kept(as_json):
        vectors, lower = trained_vectors(task, data, source)
        found: dict[str, Any] = {"words": len(vectors.words)}
        if questions is not None:
            found["analogies"] = analogies(vectors, questions, lower=lower)
        if similarity is not None:
            found["similarity"] = similar(vectors, similarity, lower=lower)
        if near:
            found["near"] = _nearest(vectors, near)
    if as_json:
        click.echo(json.dumps(found))
        return
    for line in _told(found):
        click.echo(line)


def _nearest(vectors: "WordVectors", near: tuple[str, ...]) -> dict[str, list[tuple[str, float]]]:
    from ..task.load_task import blame

    with blame("E329", "--near"):
        return {word: vectors.nearest(word) for word in near}


def _told(found: dict[str, Any]) -> list[str]:
    lines = []
    for section, score in found.get("analogies", {}).items():
        share = f"{100 * score['right'] / score['asked']:.1f} %" if score["asked"] else "none asked"
        unknown = f", {score['unknown']} with unknown words left out" if score["unknown"] else ""
        lines.append(f"{section}: {score['right']} of {score['asked']} analogies right, {share}{unknown}")
    if "similarity" in found:
        score = found["similarity"]
        rank = "none" if score["spearman"] is None else f"{score['spearman']:.3f}"
        lines.append(f"similarity: Spearman {rank}, {score['known']} of {score['pairs']} pairs known")
    for word, others in found.get("near", {}).items():
        lines.append(f"{word}: " + ", ".join(f"{other} {cosine:.2f}" for other, cosine in others))
    return lines
