"""The command `cutset eval`: evaluates trained weights on a split, or scores trained word vectors."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import UsageError
from ..path_option import PathOption
from ..run_folder import LAST
from .config_options import TASK_OPTIONS, GroupedCommand, GroupedOption, config_options, read_task_spec, refuse_both
from .output import json_option, keep_stdout, print_json

if TYPE_CHECKING:
    from ...models.tasks.word_vectors import WordVectors

WORDS = "Word vectors"
EXAMPLES = """\b
Examples:
  cutset eval cutset.models:digits --checkpoint runs/last
  cutset eval net.py:task --checkpoint model.safetensors --machines 4 --split train
  cutset eval net.py:task --checkpoint runs/0003-task --ema
  cutset eval cutset.models:word2vec --data text:FILE --word-vectors --questions questions-words.txt --near king
"""


@click.command("eval", cls=GroupedCommand, epilog=EXAMPLES)
@click.argument("task")
@config_options(*TASK_OPTIONS, "machines", "placement", defaults={"machines": "as trained"})
@click.option(
    "--checkpoint",
    "source",
    type=PathOption(),
    default=LAST,
    show_default=True,
    help="A run folder, a checkpoint folder, or a safetensors file (a plain state_dict).",
)
@click.option("--ema", is_flag=True, help="Evaluate the moving average of the weights, of a run with --ema.")
@click.option("--split", default="test", show_default=True, help="Samples to evaluate on: test or train.")
@click.option(
    "--word-vectors",
    is_flag=True,
    cls=GroupedOption,
    group=WORDS,
    help="Score the word vectors of a word2vec task instead, by one or more of the following.",
)
@click.option(
    "--questions",
    type=PathOption(may_be_folder=False),
    cls=GroupedOption,
    group=WORDS,
    help='File of analogies: four words a line, ": section" above each section, as in questions-words.txt.',
)
@click.option(
    "--similarity",
    type=PathOption(may_be_folder=False),
    cls=GroupedOption,
    group=WORDS,
    help="File of similarity judgements: two words and a number a line, as in WordSim-353.",
)
@click.option(
    "--near",
    multiple=True,
    metavar="WORD",
    cls=GroupedOption,
    group=WORDS,
    help="Show the words nearest to this one. Can be repeated.",
)
@json_option
def evaluate(
    task: str,
    source: Path,
    ema: bool,
    split: str,
    word_vectors: bool,
    questions: Path | None,
    similarity: Path | None,
    near: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Evaluate TASK with trained weights.

    The batches of a split stream through the machines of a cut model.
    """
    scores_words = questions is not None or similarity is not None or bool(near)
    if word_vectors != scores_words:
        facts = "--word-vectors goes with --questions, --similarity or --near"
        raise UsageError("E218", facts, fix="--word-vectors --near WORD, or none of them")
    if word_vectors and ema:
        raise refuse_both("--ema", "--word-vectors")
    if word_vectors:
        with keep_stdout(as_json):
            scores = _score_words(task, options["data"], source, questions, similarity, near)
        _report_words(scores, as_json=as_json)
        return
    with keep_stdout(as_json):
        result = _evaluate_split(task, source, split, options, averaged=ema)
    _report_split(result, as_json=as_json)


def _evaluate_split(task: str, source: Path, split: str, options: dict[str, Any], *, averaged: bool) -> dict[str, Any]:
    """Load the placement, if one is named, then capture, plan and run the model (`evaluate`)."""
    from ...partition.placement.placement_file import load
    from ..evaluation.evaluate import check_split, evaluate
    from ..task.plan_request import PlanRequest

    path, machines = options["placement"], options["machines"]
    if path is not None and machines is not None:
        raise refuse_both("--machines", "--placement")
    if machines is not None and machines < 1:
        raise UsageError("E201", f"{machines} machines; it takes at least one", fix="--machines 1")
    spec, placement = read_task_spec(task, options), None if path is None else load(path)
    plan = PlanRequest(machines)
    return evaluate(spec, source, request=plan, placement=placement, split=check_split(split), averaged=averaged)


def _report_split(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    over = "one machine" if result["machines"] == 1 else f"{result['machines']} machines ({result['plan']})"
    scores = [] if result["loss"] is None else [f"{result['split']} loss {result['loss']:.6g}"]
    if result["correct"] is not None:
        counts = f"{result['correct']} of {result['samples']} {result['split']} samples correct"
        scores.insert(0, f"{counts}: {100 * result['accuracy']:.2f} %")
    click.echo(
        f"{', '.join([*scores, *(f'{name} {value:.6g}' for name, value in result['metrics'].items())])}, "
        f"in {result['seconds']:.2f} s on {over}, {result['samples_per_s']:.0f} samples/s"
    )


def _score_words(
    task: str,
    data: str | None,
    source: Path,
    questions: Path | None,
    similarity: Path | None,
    near: tuple[str, ...],
) -> dict[str, Any]:
    """Score the word vectors of cutset.models:word2vec, named with the arguments that it was trained with."""
    from ..evaluation.word_vectors import load_word_vectors, score_analogies, score_similarity

    vectors, lower = load_word_vectors(task, data, source)
    scores: dict[str, Any] = {"words": len(vectors.words)}
    if questions is not None:
        scores["analogies"] = score_analogies(vectors, questions, lower=lower)
    if similarity is not None:
        scores["similarity"] = score_similarity(vectors, similarity, lower=lower)
    if near:
        scores["near"] = _find_nearest(vectors, near)
    return scores


def _find_nearest(vectors: "WordVectors", near: tuple[str, ...]) -> dict[str, list[tuple[str, float]]]:
    from ..blame import blame

    with blame("E329", "--near"):
        return {word: vectors.nearest(word) for word in near}


def _report_words(scores: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(scores)
        return
    for section, score in scores.get("analogies", {}).items():
        fraction = f"{100 * score['right'] / score['asked']:.1f} %" if score["asked"] else "none asked"
        unknown = f", {score['unknown']} with unknown words left out" if score["unknown"] else ""
        click.echo(f"{section}: {score['right']} of {score['asked']} analogies right, {fraction}{unknown}")
    if "similarity" in scores:
        score = scores["similarity"]
        rank = "none" if score["spearman"] is None else f"{score['spearman']:.3f}"
        click.echo(f"similarity: Spearman {rank}, {score['known']} of {score['pairs']} pairs known")
    for word, others in scores.get("near", {}).items():
        click.echo(f"{word}: " + ", ".join(f"{other} {cosine:.2f}" for other, cosine in others))
