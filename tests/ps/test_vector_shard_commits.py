"""A shard of vectors goes back to what it has committed, to the last bit, or to the beginning."""

import shutil

import pytest
import torch
from told_shard import BEGIN, Told
from told_shard import told as told

from cutset.errors import CheckpointError, NetworkError
from cutset.ps.sandblaster.vector_ops import AT, Absolute, Axpy, Combine, Copy, Drop, Evaluate, Scale
from cutset.ps.sandblaster.vector_shard import commit_folder


def filled(told):
    """Some batches, so that there are vectors with bits that no short decimal has."""
    told.operate(1, Combine("direction", [(1 / 3, AT)]), Copy("step-1", AT), Scale("step-1", 1e-300))
    told.operate(2, Axpy(AT, 0.1, "direction"), Drop(["gone"]))


def bits(vectors):
    return {
        number: {name: (v.dtype, v.view(torch.int64).tolist()) for name, v in named.items()}
        for number, named in vectors.items()
    }


def test_a_commit_has_every_bit(told, tmp_path):
    filled(told)
    before = bits(told.vectors)
    assert told.commit(2) == [("coordinator", "committed", {"epoch": 1, "number": 2}, [])]
    told.operate(3, Scale(AT, 2.0), Drop(["direction"]), Copy("more", AT))
    assert bits(told.vectors) != before
    assert told.back(2, 2) == [("coordinator", "rolled back", {"epoch": 2}, [])]
    assert bits(told.vectors) == before
    assert told.operate(3, Absolute("direction"))[0][2]["number"] == 3
    another = Told(tmp_path / "batch", epoch=7, number=2)  # in another process
    assert bits(another.vectors) == before
    assert set(another.vectors[0]) == {AT, "direction", "step-1"}


def test_numbers_that_are_not_finite_are_kept(told):
    told.operate(1, Combine("odd", [(float("inf"), AT)]), Combine("nothing", [(0.0, "odd")]))
    before = bits(told.vectors)
    told.commit(1)
    told.back(2, 1)
    assert bits(told.vectors) == before
    assert told.vectors[0]["nothing"].isnan().all()


def test_the_first_values_are_those_of_operation_zero(told):
    filled(told)
    told.commit(2)
    told.back(2, 0)
    assert told.values == BEGIN
    assert set(told.vectors[0]) == {AT}
    assert told.operate(1, Absolute(AT)) == [told.operated(1, 20.0)]


def test_going_back_twice_goes_back_once(told):
    """Said again after a silence; and what an older coordinator says changes nothing."""
    told.back(3, 0)
    told.operate(1, Scale(AT, 2.0))
    assert told.back(3, 0, "coordinator.1") == [("coordinator.1", "rolled back", {"epoch": 3}, [])]
    assert told.back(2, 0) == [("coordinator", "rolled back", {"epoch": 2}, [])]
    assert told.values == {0: [4, 6, 8], 2: [-2, 20]}
    assert told.operate(2, Absolute(AT)) == [told.operated(2, 40.0)]


def test_going_back_gives_up_what_waits_for_gradients(told):
    told.operate(1, Scale(AT, 2.0), Evaluate(AT, "g", 0, 1))
    told.back(2, 0)
    assert told.values == BEGIN
    assert told.operate(1, Absolute(AT)) == [told.operated(1, 20.0)]


def folders(told):
    return sorted(path.name for path in told.folder.iterdir())


def test_older_commits_go_but_for_the_one_to_keep(told):
    for number in range(1, 5):
        told.operate(number, Scale(AT, 2.0))
        told.commit(number, keep=number - 1)
        assert folders(told) == [f"shard-1.{n}" for n in (number - 1, number) if n]
    told.operate(5, Scale(AT, 2.0))
    told.commit(5, keep=3)
    assert folders(told) == ["shard-1.3", "shard-1.5"]
    told.operate(6, Scale(AT, 2.0))
    told.commit(6, keep=4)
    assert folders(told) == ["shard-1.6"]


def test_commits_of_other_shards_are_left_alone(told):
    for name in ("shard-0.1", "shard-10.1", "shard-11.7", "operations"):
        (told.folder / name).mkdir(parents=True)
    told.operate(1, Scale(AT, 2.0))
    told.commit(1)
    told.operate(2, Scale(AT, 2.0))
    told.commit(2)
    assert folders(told) == ["operations", "shard-0.1", "shard-1.2", "shard-10.1", "shard-11.7"]


def test_a_commit_that_is_said_again_is_answered_again(told):
    filled(told)
    answer = [("coordinator", "committed", {"epoch": 1, "number": 2}, [])]
    assert [told.commit(2), told.commit(2)] == [answer] * 2
    told.back(2, 2)
    assert told.commit(2) == [("coordinator", "committed", {"epoch": 2, "number": 2}, [])]
    told.back(3, 2)
    assert set(told.vectors[0]) == {AT, "direction", "step-1"}


def test_a_commit_of_another_course_takes_the_place_of_one_that_was_given_up(told):
    """A shard had written a commit before the others; they went back, and came to the same number in another way."""
    told.operate(1, Scale(AT, 2.0))
    told.commit(1)
    told.back(2, 0)
    told.operate(1, Scale(AT, 3.0))
    assert told.commit(1) == [("coordinator", "committed", {"epoch": 2, "number": 1}, [])]
    told.back(3, 1)
    assert told.values == {0: [6, 9, 12], 2: [-3, 30]}


def test_a_commit_that_was_cut_off_does_not_count(told, tmp_path):
    filled(told)
    folder = commit_folder(told.folder, 1, 2)
    folder.mkdir(parents=True)
    (folder / "shard-1.tmp").write_bytes(b"half of it")
    with pytest.raises(CheckpointError):
        told.back(2, 2)
    another = Told(tmp_path / "batch")
    filled(another)
    another.commit(2)
    before = bits(another.vectors)
    another.back(2, 2)
    assert bits(another.vectors) == before


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_commit_of_another_batch_than_the_last_is_refused(told, number):
    filled(told)
    with pytest.raises(NetworkError, match=f"is of batch {number}; the last was 2"):
        told.commit(number)
    assert not told.folder.exists()


def test_a_commit_while_gradients_are_awaited_is_refused(told):
    filled(told)
    told.operate(3, Evaluate(AT, "g", 0, 1))
    with pytest.raises(NetworkError, match="is of batch 2; the last was 2"):
        told.commit(2)


def test_a_commit_that_is_missing_is_told(told):
    filled(told)
    with pytest.raises(CheckpointError, match=r"shard-1 has no file of operation 2 in .*batch") as caught:
        told.back(2, 2)
    assert caught.value.code == "E811"
    assert caught.value.fix
    told.commit(2, epoch=1)
    shutil.rmtree(commit_folder(told.folder, 1, 2))
    with pytest.raises(CheckpointError, match="operation 2"):
        told.back(3, 2)
