"""Buffers outlive the worker that had them."""

import contextlib
from pathlib import Path

import pytest
import torch

from cutset.errors import UsageError
from cutset.tools.replica.replica_state import SAVE_INTERVAL_S, BufferFile, remove_buffers_afterwards
from cutset.tools.run_folder import buffer_path
from cutset.tools.tensor_files import name_unfinished


def test_a_restarted_worker_restores_what_was_saved_last(tmp_path: Path) -> None:
    path, now = tmp_path / "buffers", [0.0]
    mean, count = torch.zeros(3), torch.tensor(0)
    file = BufferFile([mean, count], path, restarted=False, clock=lambda: now[0])
    mean += 1
    file.save()
    assert not path.exists()  # it is too soon
    now[0] = SAVE_INTERVAL_S
    file.save()
    mean += 1
    count += 5
    later = [torch.full((3,), 7.0), torch.tensor(9)]
    BufferFile(later, path, restarted=True)
    assert later[0].tolist() == [1.0] * 3
    assert int(later[1]) == 0
    file.save(now=True)
    BufferFile(later, path, restarted=True)
    assert later[0].tolist() == [2.0] * 3
    assert int(later[1]) == 5


def test_files_of_an_earlier_run_are_ignored(tmp_path: Path) -> None:
    path, buffer = tmp_path / "buffers", torch.ones(2)
    BufferFile([buffer], path, restarted=False).save(now=True)
    BufferFile([torch.zeros(2)], path, restarted=False)
    fresh = torch.full((2,), 3.0)
    BufferFile([fresh], path, restarted=True)
    assert fresh.tolist() == [3.0, 3.0]


def test_a_model_without_buffers_leaves_no_file(tmp_path: Path) -> None:
    BufferFile([], tmp_path / "buffers", restarted=False).save(now=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [None, KeyError])
def test_no_buffer_file_is_left_however_the_run_ends(tmp_path: Path, error: type[Exception] | None) -> None:
    """Another's file stays."""
    other = buffer_path(tmp_path, 2, 0)
    other.touch()
    with contextlib.suppress(KeyError), remove_buffers_afterwards(tmp_path, replicas=2, machines=2):
        BufferFile([torch.ones(2)], buffer_path(tmp_path, 1, 1), restarted=False).save(now=True)
        name_unfinished(buffer_path(tmp_path, 0, 1)).touch()
        assert len(list(tmp_path.iterdir())) == 3
        if error is not None:
            raise error
    assert list(tmp_path.iterdir()) == [other]


def test_a_file_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    path = buffer_path(tmp_path, 0, 0)
    path.mkdir()
    with (
        pytest.raises(UsageError, match=f"E222: cannot remove {path}"),
        remove_buffers_afterwards(tmp_path, replicas=1, machines=1),
    ):
        pass
