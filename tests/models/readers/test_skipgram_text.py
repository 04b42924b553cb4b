"""A text as skip-gram samples: the vocabulary, windows, subsampling, negatives, and the bound on what is kept."""

import numpy as np
import pytest
import torch

from cutset.models.readers.skipgram_text import Vocabulary, Windows, read_skip_grams, read_vocabulary, split_words
from cutset.models.task import TaskError


@pytest.fixture
def text(tmp_path):
    """300 lines of 12 words; word w0 half the time, w1 to w20 alike else, and one rare word."""
    generator = np.random.default_rng(1)
    lines = [
        " ".join(f"W{0 if generator.random() < 0.5 else generator.integers(1, 21)}" for _ in range(12))
        for _ in range(300)
    ]
    path = tmp_path / "text"
    path.write_text("\n".join([*lines[:150], "rare <unk>", *lines[150:]]))
    return path


def samples_of(path, *, test=False, **windows):
    known = read_vocabulary(path, min_count=2, lower=True)
    return known, read_skip_grams(path, known, Windows(**{"sample": 0.0, **windows}), lower=True, test=test)


def test_words_of_a_line():
    assert split_words("The mother-in-law's 3 (red) cats, isn't <unk> = _x_ —") == [
        *("the", "mother-in-law's", "3", "red", "cats", "isn't", "<unk>", "x"),
    ]
    assert split_words("Über Élan", lower=False) == ["Über", "Élan"]


def test_the_frequent_come_first_and_the_rare_are_left_out(text):
    known = read_vocabulary(text, min_count=2, lower=True)
    assert known.words[0] == "w0"
    assert len(known) == 21
    assert list(known.counts) == sorted(known.counts, reverse=True)
    assert sum(known.counts) == 3600
    assert read_vocabulary(text, min_count=1, lower=False).words[-1] == "rare"


def test_contexts_are_in_the_window_of_their_line(tmp_path):
    path = tmp_path / "text"
    path.write_text("a b c d\ne f\n")
    known, data = samples_of_all(path, window=1)
    pairs = {(known.words[a], known.words[b]) for a, b in zip(*(t.tolist() for t in data.inputs[:2]), strict=True)}
    assert pairs == {("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "c"), ("e", "f"), ("f", "e")}


def samples_of_all(path, **windows):
    known = read_vocabulary(path, min_count=1, lower=True)
    return known, read_skip_grams(path, known, Windows(**{"sample": 0.0, **windows}), lower=True, test=False)


def test_each_centre_draws_how_far_its_window_reaches(text):
    _, near = samples_of(text, window=1)
    _, far = samples_of(text, window=4)
    # On average a window of up to 4 reaches 2.5 words to either side, but for the ends of lines of 12 words.
    inside = sum((5 - d) / 4 * 2 * (12 - d) for d in range(1, 5)) / (2 * 11)
    assert len(far) / len(near) == pytest.approx(inside, rel=0.03)


def test_the_lines_for_tests_are_not_trained_on(tmp_path):
    path = tmp_path / "text"
    path.write_text("\n".join(["x y"] * 19 + ["p q"]) + "\n")
    known, train = samples_of_all(path, window=2)
    test = read_skip_grams(path, known, Windows(2, sample=0.0), lower=True, test=True)
    assert {known.words[i] for i in train.inputs[0].tolist()} == {"x", "y"}
    assert {known.words[i] for i in test.inputs[0].tolist()} == {"p", "q"}


def test_frequent_words_are_subsampled(text):
    known, plain = samples_of(text, window=1)
    _, less = samples_of(text, window=1, sample=0.01)
    shares = [float((data.inputs[0] == 0).float().mean()) for data in (plain, less)]
    kept = np.minimum(1, np.sqrt(0.01 * sum(known.counts) / np.array(known.counts)))
    counts = kept * np.array(known.counts)
    assert shares[0] == pytest.approx(0.5, abs=0.03)
    assert shares[1] == pytest.approx(counts[0] / counts.sum(), abs=0.05)


def test_negatives_are_drawn_by_counts_to_three_quarters_and_are_never_the_context(text):
    known, data = samples_of(text, window=5, negatives=8)
    _, context, negatives = data.inputs
    assert not (negatives == context[:, None]).any()
    weights = torch.tensor(known.counts, dtype=torch.float64) ** 0.75
    others = negatives[context == 5].flatten()  # of a context that is one word, so the rest keeps its proportions
    weights[5] = 0
    found = torch.bincount(others, minlength=len(known)) / others.numel()
    torch.testing.assert_close(found.double(), weights / weights.sum(), rtol=0.25, atol=0.002)


def test_two_words_leave_one_negative(tmp_path):
    path = tmp_path / "text"
    path.write_text("a b a b a b\n" * 3)
    _, data = samples_of_all(path, negatives=3)
    assert torch.equal(data.inputs[2], (1 - data.inputs[1])[:, None].expand(-1, 3))


def test_the_same_seed_gives_the_same_samples(text):
    (_, one), (_, two), (_, other) = (samples_of(text, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one.inputs, two.inputs, strict=True))
    assert len(one) != len(other) or not torch.equal(one.inputs[0], other.inputs[0])


def test_so_many_samples_at_most_and_from_everywhere(text, monkeypatch):
    monkeypatch.setattr("cutset.models.readers.skipgram_text.CHUNK", 100)
    known, all_of_them = samples_of(text)
    _, data = samples_of(text, max_samples=500)
    assert 200 < len(data) <= 500
    assert {t.dtype for t in data.inputs} == {torch.int32}
    share = [float((d.inputs[0] == 0).float().mean()) for d in (all_of_them, data)]
    assert share[1] == pytest.approx(share[0], abs=0.1)
    assert len(set(data.inputs[0].tolist())) == len(known)


def test_what_is_no_text_is_named_with_its_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one two\nthree \xff four\n")
    with pytest.raises(TaskError, match=r"text:2: byte 7 of the line is no UTF-8 text") as caught:
        read_vocabulary(path, min_count=1, lower=True)
    assert "iconv" in caught.value.fix
    with pytest.raises(TaskError, match="cannot be read: No such file"):
        read_vocabulary(tmp_path / "nowhere", min_count=1, lower=True)


def test_too_little_text_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_text("one one\ntwo\n")
    with pytest.raises(TaskError, match="has 1 words that occur at least 2 times"):
        read_vocabulary(path, min_count=2, lower=True)
    path.write_text("one\ntwo\n")
    with pytest.raises(TaskError, match="no two words of the vocabulary beside each other in its lines for training"):
        samples_of_all(path)
    with pytest.raises(TaskError, match="lines for tests"):
        read_skip_grams(path, Vocabulary(("one", "two"), (1, 1)), Windows(), lower=True, test=True)
