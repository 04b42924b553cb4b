"""A shard of vectors goes back to what it has committed, to the last bit, or to the beginning."""

import shutil

import pytest
import torch
from scripted_shard import INITIAL_VALUES, ScriptedShard
from scripted_shard import scripted as scripted

from cutset.errors import CheckpointError, NetworkError
from cutset.ps.sandblaster.vector_ops import ITERATE, Axpy, Combine, Copy, Drop, Evaluate, L1Norm, Scale
from cutset.ps.sandblaster.vector_shard import commit_folder


def filled(scripted):
    """Some batches, so that there are vectors with bits that no short decimal has."""
    scripted.operate(1, Combine("direction", [(1 / 3, ITERATE)]), Copy("step-1", ITERATE), Scale("step-1", 1e-300))
    scripted.operate(2, Axpy(ITERATE, 0.1, "direction"), Drop(["gone"]))


def bits(vectors):
    return {
        number: {name: (v.dtype, v.view(torch.int64).tolist()) for name, v in named.items()}
        for number, named in vectors.items()
    }


def test_a_commit_has_every_bit(scripted, tmp_path):
    filled(scripted)
    before = bits(scripted.vectors)
    assert scripted.commit(2) == [("coordinator", "committed", {"epoch": 1, "number": 2}, [])]
    scripted.operate(3, Scale(ITERATE, 2.0), Drop(["direction"]), Copy("more", ITERATE))
    assert bits(scripted.vectors) != before
    assert scripted.roll_back(2, 2) == [("coordinator", "rolled back", {"epoch": 2}, [])]
    assert bits(scripted.vectors) == before
    assert scripted.operate(3, L1Norm("direction"))[0][2]["number"] == 3
    another = ScriptedShard(tmp_path / "batch", epoch=7, number=2)  # in another process
    assert bits(another.vectors) == before
    assert set(another.vectors[0]) == {ITERATE, "direction", "step-1"}


def test_numbers_that_are_not_finite_are_kept(scripted):
    scripted.operate(1, Combine("odd", [(float("inf"), ITERATE)]), Combine("nothing", [(0.0, "odd")]))
    before = bits(scripted.vectors)
    scripted.commit(1)
    scripted.roll_back(2, 1)
    assert bits(scripted.vectors) == before
    assert scripted.vectors[0]["nothing"].isnan().all()


def test_the_first_values_are_those_of_operation_zero(scripted):
    filled(scripted)
    scripted.commit(2)
    scripted.roll_back(2, 0)
    assert scripted.values == INITIAL_VALUES
    assert set(scripted.vectors[0]) == {ITERATE}
    assert scripted.operate(1, L1Norm(ITERATE)) == [scripted.operated(1, 20.0)]


def test_going_back_twice_goes_back_once(scripted):
    """Said again after a silence; and what an older coordinator says changes nothing."""
    scripted.roll_back(3, 0)
    scripted.operate(1, Scale(ITERATE, 2.0))
    assert scripted.roll_back(3, 0, "coordinator.1") == [("coordinator.1", "rolled back", {"epoch": 3}, [])]
    assert scripted.roll_back(2, 0) == [("coordinator", "rolled back", {"epoch": 2}, [])]
    assert scripted.values == {0: [4, 6, 8], 2: [-2, 20]}
    assert scripted.operate(2, L1Norm(ITERATE)) == [scripted.operated(2, 40.0)]


def test_going_back_gives_up_what_waits_for_gradients(scripted):
    scripted.operate(1, Scale(ITERATE, 2.0), Evaluate(ITERATE, "g", 0, 1))
    scripted.roll_back(2, 0)
    assert scripted.values == INITIAL_VALUES
    assert scripted.operate(1, L1Norm(ITERATE)) == [scripted.operated(1, 20.0)]


def folders(scripted):
    return sorted(path.name for path in scripted.folder.iterdir())


def test_older_commits_go_but_for_the_one_to_keep(scripted):
    for number in range(1, 5):
        scripted.operate(number, Scale(ITERATE, 2.0))
        scripted.commit(number, keep=number - 1)
        assert folders(scripted) == [f"shard-1.{n}" for n in (number - 1, number) if n]
    scripted.operate(5, Scale(ITERATE, 2.0))
    scripted.commit(5, keep=3)
    assert folders(scripted) == ["shard-1.3", "shard-1.5"]
    scripted.operate(6, Scale(ITERATE, 2.0))
    scripted.commit(6, keep=4)
    assert folders(scripted) == ["shard-1.6"]


def test_commits_of_other_shards_are_left_alone(scripted):
    for name in ("shard-0.1", "shard-10.1", "shard-11.7", "operations"):
        (scripted.folder / name).mkdir(parents=True)
    scripted.operate(1, Scale(ITERATE, 2.0))
    scripted.commit(1)
    scripted.operate(2, Scale(ITERATE, 2.0))
    scripted.commit(2)
    assert folders(scripted) == ["operations", "shard-0.1", "shard-1.2", "shard-10.1", "shard-11.7"]


def test_a_commit_that_is_said_again_is_answered_again(scripted):
    filled(scripted)
    answer = [("coordinator", "committed", {"epoch": 1, "number": 2}, [])]
    assert [scripted.commit(2), scripted.commit(2)] == [answer] * 2
    scripted.roll_back(2, 2)
    assert scripted.commit(2) == [("coordinator", "committed", {"epoch": 2, "number": 2}, [])]
    scripted.roll_back(3, 2)
    assert set(scripted.vectors[0]) == {ITERATE, "direction", "step-1"}


def test_a_commit_of_another_course_takes_the_place_of_one_that_was_given_up(scripted):
    """A shard had written a commit before the others; they went back, and came to the same number in another way."""
    scripted.operate(1, Scale(ITERATE, 2.0))
    scripted.commit(1)
    scripted.roll_back(2, 0)
    scripted.operate(1, Scale(ITERATE, 3.0))
    assert scripted.commit(1) == [("coordinator", "committed", {"epoch": 2, "number": 1}, [])]
    scripted.roll_back(3, 1)
    assert scripted.values == {0: [6, 9, 12], 2: [-3, 30]}


def test_a_commit_that_was_cut_off_does_not_count(scripted, tmp_path):
    filled(scripted)
    folder = commit_folder(scripted.folder, 1, 2)
    folder.mkdir(parents=True)
    (folder / "shard-1.tmp").write_bytes(b"half of it")
    with pytest.raises(CheckpointError):
        scripted.roll_back(2, 2)
    another = ScriptedShard(tmp_path / "batch")
    filled(another)
    another.commit(2)
    before = bits(another.vectors)
    another.roll_back(2, 2)
    assert bits(another.vectors) == before


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_commit_of_another_batch_than_the_last_is_refused(scripted, number):
    filled(scripted)
    with pytest.raises(NetworkError, match=f"is of batch {number}; the last was 2"):
        scripted.commit(number)
    assert not scripted.folder.exists()


def test_a_commit_while_gradients_are_awaited_is_refused(scripted):
    filled(scripted)
    scripted.operate(3, Evaluate(ITERATE, "g", 0, 1))
    with pytest.raises(NetworkError, match="is of batch 2; the last was 2"):
        scripted.commit(2)


def test_a_missing_commit_is_named(scripted):
    filled(scripted)
    with pytest.raises(CheckpointError, match=r"shard-1 has no file of operation 2 in .*batch") as caught:
        scripted.roll_back(2, 2)
    assert caught.value.code == "E811"
    assert caught.value.fix
    scripted.commit(2, epoch=1)
    shutil.rmtree(commit_folder(scripted.folder, 1, 2))
    with pytest.raises(CheckpointError, match="operation 2"):
        scripted.roll_back(3, 2)
