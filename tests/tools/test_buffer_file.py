"""Buffers outlive the worker that had them."""

import contextlib
from pathlib import Path

import pytest
import torch

from cutset.errors import UsageError
from cutset.tools.training.buffer_file import KEEP_S, BufferFile, buffer_path, removed_afterwards
from cutset.tools.job.export_weights import unfinished


def test_who_comes_after_has_what_was_kept_last(tmp_path: Path) -> None:
    path, now = tmp_path / "buffers", [0.0]
    mean, count = torch.zeros(3), torch.tensor(0)
    file = BufferFile([mean, count], path, again=False, clock=lambda: now[0])
    mean += 1
    file.keep()
    assert not path.exists()  # it is too soon
    now[0] = KEEP_S
    file.keep()
    mean += 1
    count += 5
    later = [torch.full((3,), 7.0), torch.tensor(9)]
    BufferFile(later, path, again=True)
    assert later[0].tolist() == [1.0] * 3
    assert int(later[1]) == 0
    file.keep(now=True)
    BufferFile(later, path, again=True)
    assert later[0].tolist() == [2.0] * 3
    assert int(later[1]) == 5


def test_what_an_older_run_has_left_does_not_count(tmp_path: Path) -> None:
    path, buffer = tmp_path / "buffers", torch.ones(2)
    BufferFile([buffer], path, again=False).keep(now=True)
    BufferFile([torch.zeros(2)], path, again=False)
    fresh = torch.full((2,), 3.0)
    BufferFile([fresh], path, again=True)
    assert fresh.tolist() == [3.0, 3.0]


def test_a_model_without_buffers_leaves_no_file(tmp_path: Path) -> None:
    BufferFile([], tmp_path / "buffers", again=False).keep(now=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [None, KeyError])
def test_nothing_of_the_run_is_left_however_it_ends(tmp_path: Path, error: type[Exception] | None) -> None:
    """Another's file stays."""
    other = buffer_path(tmp_path, 2, 0)
    other.touch()
    with contextlib.suppress(KeyError), removed_afterwards(tmp_path, replicas=2, machines=2):
        BufferFile([torch.ones(2)], buffer_path(tmp_path, 1, 1), again=False).keep(now=True)
        unfinished(buffer_path(tmp_path, 0, 1)).touch()
        assert len(list(tmp_path.iterdir())) == 3
        if error is not None:
            raise error
    assert list(tmp_path.iterdir()) == [other]


def test_a_file_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    path = buffer_path(tmp_path, 0, 0)
    path.mkdir()
    with (
        pytest.raises(UsageError, match=f"E222: cannot remove {path}"),
        removed_afterwards(tmp_path, replicas=1, machines=1),
    ):
        pass
