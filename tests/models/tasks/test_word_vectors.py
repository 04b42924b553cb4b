"""Nearest words, analogies and similarity, on vectors whose answers are known."""

import pytest
import torch

from cutset.models.task import TaskError
from cutset.models.tasks.word_vectors import (
    AnalogyQuestion,
    Score,
    WordVectors,
    read_judgements,
    read_questions,
    spearman,
)

WORDS = ["man", "woman", "king", "queen", "boy", "girl", "stone"]
#                 male  female royal young
VECTORS = torch.tensor(
    [
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.0, 0.0],
        [1.0, 0.0, 1.0, 0.0],
        [0.0, 1.0, 1.0, 0.0],
        [1.0, 0.0, 0.0, 2.0],
        [0.0, 1.0, 0.0, 2.0],
        [-1.0, -1.0, 0.0, 0.0],
    ]
)


def question(section, words):
    return AnalogyQuestion(section, tuple(words.split()))


def test_nearest_words():
    found = WordVectors(WORDS, VECTORS).nearest("king", 2)
    assert [word for word, _ in found] == ["man", "queen"]
    assert [cosine for _, cosine in found] == pytest.approx([0.5**0.5, 0.5])
    with pytest.raises(TaskError, match="'prince' is not in the vocabulary"):
        WordVectors(WORDS, VECTORS).nearest("prince")


def test_lengths_do_not_matter():
    scaled = VECTORS * torch.arange(1.0, 8.0)[:, None]
    assert [w for w, _ in WordVectors(WORDS, scaled).nearest("king", 2)] == ["man", "queen"]


def test_analogies_by_section():
    questions = [
        question("royal", "man king woman queen"),
        question("royal", "man king woman girl"),
        question("royal", "man king woman princess"),
        question("young", "man boy woman girl"),
    ]
    scores = WordVectors(WORDS, VECTORS).analogies(questions)
    assert scores == {"royal": Score(1, 2, 1), "young": Score(1, 1, 0)}


def test_similarity_is_the_correlation_of_ranks():
    vectors = WordVectors(WORDS, VECTORS)
    judged = [("man", "king", 9.0), ("man", "woman", 5.0), ("man", "stone", 1.0), ("man", "prince", 8.0)]
    assert vectors.similarity(judged) == (pytest.approx(1.0), 3)
    assert vectors.similarity([(a, b, -score) for a, b, score in judged]) == (pytest.approx(-1.0), 3)
    assert vectors.similarity(judged[:1]) == (None, 1)


def test_spearman_shares_ranks():
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: covariance 4.5, variances 4.5 and 5.
    assert spearman([1, 5, 5, 7], [10, 30, 20, 40]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert spearman([1, 1], [1, 2]) is None


def test_files_of_questions_and_judgements(tmp_path):
    path = tmp_path / "file"
    path.write_text(": capitals\nAthens Greece Oslo Norway\n\n: family\nboy girl king queen\n")
    assert [(q.section, q.words[0]) for q in read_questions(path)] == [("capitals", "athens"), ("family", "boy")]
    path.write_text("# comment\n# more\nlove\tsex\t6.77\nFBI\tfingerprint\t6.94\n")
    assert read_judgements(path) == [("love", "sex", 6.77), ("fbi", "fingerprint", 6.94)]
    assert read_judgements(path, lower=False)[1][0] == "FBI"


def test_malformed_lines_are_named(tmp_path):
    path = tmp_path / "file"
    path.write_text(": a\none two three\n")
    with pytest.raises(TaskError, match="file:2: 3 words; a question has four"):
        read_questions(path)
    for line in ("one two", "one two three", "one two 1 2"):
        path.write_text(f"a b 1\n{line}\n")
        with pytest.raises(TaskError, match=f"file:2: '{line}' is not two words and a number"):
            read_judgements(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TaskError, match="is no UTF-8 text"):
        read_questions(path)
    with pytest.raises(TaskError, match="cannot be read"):
        read_judgements(tmp_path / "nowhere")
