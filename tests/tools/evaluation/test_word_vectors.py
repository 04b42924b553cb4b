"""`cutset eval --word-vectors`: a word2vec trained by two replicas, and what its vectors are good for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from cutset.errors import BadInput, CheckpointError
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import Adagrad
from cutset.tools.commands.cli import cli
from cutset.tools.evaluation.word_vectors import load_word_vectors
from cutset.tools.train import train

MODEL = "cutset.models:word2vec(dimension=8,min_count=1,sample=0.0,negatives=3)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of two topics, whose words never meet."""
    generator = torch.Generator().manual_seed(0)
    topics = [[f"{kind}{i}" for i in range(6)] for kind in ("sea", "land")]
    drawn = (torch.randint(0, 6, (8,), generator=generator).tolist() for _ in range(400))
    lines = [" ".join(topics[number % 2][i] for i in places) for number, places in enumerate(drawn)]
    path = tmp_path_factory.mktemp("words")
    (path / "text").write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def result(folder: Path) -> dict[str, Any]:
    return train(
        MODEL,
        data=f"text:{folder / 'text'}",
        replicas=2,
        method=Sync(),
        optimizer=Adagrad(0.3),
        batch=64,
        baseline=False,
        out=folder / "run",
    )


def called(folder: Path, *arguments: str) -> dict[str, Any]:
    run = [
        "eval",
        MODEL,
        "--word-vectors",
        "--data",
        f"text:{folder / 'text'}",
        "--checkpoint",
        str(folder / "run"),
        "--json",
    ]
    done = CliRunner().invoke(cli, [*run, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


@pytest.mark.slow
def test_topics_are_told_apart(folder: Path, result: dict[str, Any]) -> None:
    (folder / "pairs").write_text("sea0 sea1 9\nland2 land3 8\nsea0 land2 2\nland1 sea1 1\nsea0 sky 5\n")
    (folder / "questions").write_text(": topics\nsea0 sea1 land0 land1\nsea0 sea1 land0 sky\n")
    found = called(
        folder, "--near", "sea0", "--similarity", str(folder / "pairs"), "--questions", str(folder / "questions")
    )
    assert found["words"] == 12
    assert {word.rstrip("012345") for word, _ in found["near"]["sea0"][:5]} == {"sea"}
    assert found["similarity"]["spearman"] > 0.7
    assert (found["similarity"]["known"], found["similarity"]["pairs"]) == (4, 5)
    assert (found["analogies"]["all"]["asked"], found["analogies"]["all"]["unknown"]) == (1, 1)
    assert result["rows"][-1]["bytes_per_step"] > 0


def test_what_cannot_be_scored_is_named(folder: Path, result: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"E328: cutset.models:digits is not a word2vec task"):
        load_word_vectors("cutset.models:digits", None, folder / "run")
    with pytest.raises(BadInput, match=r"E328: .* without a text"):
        load_word_vectors(MODEL, None, folder / "run")
    (folder / "other").write_text((folder / "text").read_text().replace("sea5", "sea4"))
    with pytest.raises(CheckpointError, match=r"E809: .* no table centre.weight of 11 words"):
        load_word_vectors(MODEL, f"text:{folder / 'other'}", folder / "run")
    with pytest.raises(BadInput, match=r"E329: .*'sky' is not in the vocabulary"):
        called(folder, "--near", "sky")
    (folder / "pairs").write_text("sea0 sea1\n")
    with pytest.raises(BadInput, match=r"E329: .*pairs:1: "):
        called(folder, "--similarity", str(folder / "pairs"))


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2])
def test_bytes_a_step_are_those_of_the_rows_that_are_touched(tmp_path: Path, replicas: int) -> None:
    lines = [f"{number % 2} {1 + number % 7}:1 {9 + number % 11}:1" for number in range(320)]
    (tmp_path / "samples").write_text("\n".join(lines))

    def bytes_per_step(features: int) -> float:
        result = train(
            f"cutset.models:logistic(features={features})",
            data=f"libsvm:{tmp_path / 'samples'}",
            replicas=replicas,
            method=Sync(),
            optimizer=Adagrad(0.1),
            batch=8,
            baseline=False,
            out=tmp_path / f"run-{features}",
        )
        found: float = result["rows"][-1]["bytes_per_step"]
        return found

    small, large = bytes_per_step(1000), bytes_per_step(200_000)
    assert large == pytest.approx(small, rel=0.05)
    assert large < 1000
