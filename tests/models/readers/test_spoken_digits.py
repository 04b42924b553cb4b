"""Takes of spoken digits: from recordings and from a file of energies, and every way in which they can be damaged."""

from pathlib import Path

import numpy as np
import pytest
import torch
from takes import SPEAKERS, write_takes, write_wave

from cutset.models.readers.filter_bank import BANDS
from cutset.models.readers.spoken_digits import FRAMES, read_takes
from cutset.models.task import TaskError


def write_energies(path: Path, **changes: np.ndarray | None) -> Path:
    """Write a file of energies of two speakers, with other arrays, or without those that are None."""
    values = np.random.default_rng(0).standard_normal((20, FRAMES * BANDS))
    arrays = {
        "X": values.astype(np.float16),
        "y": np.tile(np.arange(10, dtype=np.uint8), 2),
        "speaker": np.repeat(["anna", "ben"], 10),
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize("place", [".", "recordings"])
def test_recordings_are_read_by_speaker_digit_and_take(tmp_path, place):
    write_takes(tmp_path / place, takes=2)
    takes = read_takes(tmp_path)
    assert (takes.energies.shape, takes.energies.dtype) == ((60, FRAMES, BANDS), torch.float32)
    assert takes.speakers == tuple(speaker for speaker in SPEAKERS for _ in range(20))
    assert takes.digits.tolist() == 3 * [digit for digit in range(10) for _ in range(2)]


def test_a_higher_tone_is_in_a_higher_band(tmp_path):
    loudest = read_takes(write_takes(tmp_path)).energies[:10, FRAMES // 2].argmax(1)
    assert loudest.tolist() == sorted(set(loudest.tolist()))


def test_energies_are_read_as_they_are(tmp_path):
    path = write_energies(tmp_path / "energies.npz")
    takes = read_takes(tmp_path)
    assert torch.equal(takes.energies.flatten(1), torch.from_numpy(np.load(path)["X"].astype(np.float32)))
    assert takes.of({"ben"}).digits.tolist() == list(range(10))


def test_a_missing_folder_and_an_empty_one_are_named(tmp_path):
    for folder, facts in [
        (tmp_path / "nowhere", "nowhere does not exist"),
        (tmp_path, r"has no recordings such as 7_theo_32\.wav"),
    ]:
        with pytest.raises(TaskError, match=facts) as caught:
            read_takes(folder)
        assert "--data fsdd:DIR" in caught.value.fix


def test_a_part_of_the_data_is_not_taken_for_the_whole(tmp_path):
    (write_takes(tmp_path) / "7_ben_0.wav").unlink()
    with pytest.raises(TaskError, match="no takes of the digit 7 by ben") as caught:
        read_takes(tmp_path)
    assert "download" in caught.value.fix


def test_one_speaker_is_too_few(tmp_path):
    for path in write_takes(tmp_path).iterdir():
        if "_anna_" not in path.name:
            path.unlink()
    with pytest.raises(TaskError, match="takes of one speaker"):
        read_takes(tmp_path)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (lambda whole: whole[:-100], "expected 3200 bytes of sound, found 3100"),
        (lambda whole: whole[:20], "cannot be read"),
        (lambda whole: b"", "cannot be read: it ends too early"),
        (lambda whole: b"<html>not found</html>", "cannot be read"),
        (lambda whole: whole[:44], "expected 3200 bytes of sound, found 0"),
    ],
    ids=["cut", "header cut", "empty", "page", "header alone"],
)
def test_damaged_recordings_are_named(tmp_path, content, facts):
    path = write_takes(tmp_path) / "3_carl_0.wav"
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(TaskError, match=rf"3_carl_0\.wav:? ?{facts}") as caught:
        read_takes(tmp_path)
    assert "download it again" in caught.value.fix


def test_other_recordings_are_named(tmp_path):
    write_wave(write_takes(tmp_path) / "3_carl_0.wav", [0] * 800, channels=2)
    with pytest.raises(TaskError, match="2 channels of 16 bits, expected one of 16"):
        read_takes(tmp_path)
    (tmp_path / "3_carl_0.wav").rename(tmp_path / "hello.wav")
    with pytest.raises(TaskError, match=r"hello\.wav: the name is not DIGIT_SPEAKER_TAKE\.wav"):
        read_takes(tmp_path)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"y": None}, "lacks an array X, y or speaker"),
        ({"X": np.zeros((20, 7), np.float32)}, r"X float32 \(20, 7\).* expected 32 x 40 energies"),
        ({"X": np.full((20, FRAMES * BANDS), np.nan, np.float32)}, "energies that are not finite"),
        ({"y": np.full(20, 10)}, "other digits than 0 to 9"),
        ({"speaker": np.array([None] * 20)}, "cannot be read: .*allow_pickle"),
    ],
    ids=["array missing", "shape", "nan", "digit", "pickled"],
)
def test_damaged_energies_are_named(tmp_path, changes, facts):
    write_energies(tmp_path / "energies.npz", **changes)
    with pytest.raises(TaskError, match=rf"energies\.npz .*{facts}") as caught:
        read_takes(tmp_path)
    assert "download it again" in caught.value.fix


@pytest.mark.parametrize("size", [0, 10, 2000], ids=["empty", "header cut", "cut"])
def test_a_cut_file_of_energies_is_named(tmp_path, size):
    path = write_energies(tmp_path / "energies.npz")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TaskError, match=r"energies\.npz cannot be read") as caught:
        read_takes(tmp_path)
    assert "download it again" in caught.value.fix
