"""The protocol of a shard of vectors, message by message."""

import shutil

import msgspec
import pytest
import torch

from cutset.partition.errors import CheckpointError, NetworkError
from cutset.ps.layout import Slice
from cutset.ps.minimiser import Portions
from cutset.ps.vector_operations import (
    AT,
    Absolute,
    Axpy,
    Combine,
    Copy,
    Dot,
    Drop,
    Evaluate,
    Largest,
    Scale,
)
from cutset.ps.vector_shard import VectorShard, commit_folder, from_whole
from cutset.runtime.message import Message

SLICES = [Slice(1, 0, 2, 5, 0), Slice(1, 2, 0, 2, 2)]  # of machines 0 and 2
WHOLE = {0: torch.arange(8, dtype=torch.float64), 2: torch.tensor([-1.0, 10.0], dtype=torch.float64)}
BEGIN = {0: [2.0, 3.0, 4.0], 2: [-1.0, 10.0]}
PORTIONS = Portions(10, 3)  # the last has one sample


class Told:
    """A shard, and what it answers, as plain data."""

    def __init__(self, folder, *, epoch=1, number=0, slices=SLICES):
        self.folder, self.epoch = folder, epoch
        self.shard = VectorShard(1, slices, PORTIONS, from_whole(WHOLE), folder)
        if epoch:
            assert self.back(epoch, number) == [("coordinator", "rolled back", {"epoch": epoch}, [])]

    def say(self, sender, kind, body, *, edge=0, step=0, tensors=()):
        replies = self.shard.handle(Message(kind, step, 0, edge, body, tensors, sender))
        return [(to, m.kind, m.body, [tensor.tolist() for tensor in m.tensors]) for to, m in replies]

    def back(self, epoch, number, sender="coordinator"):
        self.epoch = max(self.epoch, epoch)
        return self.say(sender, "roll back", {"epoch": epoch, "number": number})

    def operate(self, number, *batch, epoch=None, sender="coordinator"):
        body = {"epoch": epoch or self.epoch, "number": number, "batch": msgspec.to_builtins(batch)}
        return self.say(sender, "operate", body)

    def commit(self, number, keep=0, epoch=None):
        return self.say("coordinator", "commit", {"epoch": epoch or self.epoch, "number": number, "keep": keep})

    def point(self, number, place=0, *, edge=0, epoch=None, sender="worker-0.0", step=0):
        body = {"epoch": epoch or self.epoch, "number": number, "place": place}
        return self.say(sender, "point", body, edge=edge, step=step)

    def gradient(self, number, level, index, *numbers, place=0, edge=0, epoch=None, sender="worker-0.0", tensors=None):
        body = {"epoch": epoch or self.epoch, "number": number, "place": place, "level": level, "index": index}
        given = (torch.tensor(numbers, dtype=torch.float64),) if tensors is None else tensors
        return self.say(sender, "gradient", body, edge=edge, tensors=given)

    def read(self, edge, sender="worker-0.0", step=0):
        return self.say(sender, "read", {}, edge=edge, step=step)

    @property
    def values(self):
        """The parameters by slice."""
        return {edge: self.read(edge)[0][3][0] for edge in BEGIN}

    @property
    def vectors(self):
        """All vectors by slice and name."""
        return {number: dict(sorted(vectors.items())) for number, vectors in self.shard._vectors.items()}

    def operated(self, number, *shares, epoch=None, to="coordinator"):
        """The answer to a batch."""
        return (to, "operated", {"epoch": epoch or self.epoch, "number": number, "shares": list(shares)}, [])


def summed(to="worker-0.0"):
    return (to, "summed", {}, [])


@pytest.fixture
def told(tmp_path):
    return Told(tmp_path / "batch")


# Operations


def test_it_begins_with_the_first_values(told):
    assert told.values == BEGIN


def test_operations_are_carried_out_on_all_slices_and_their_shares_joined(told):
    first = told.operate(1, Dot(AT, AT), Scale(AT, 2.0), Absolute(AT), Largest(AT))
    assert first == [told.operated(1, 4 + 9 + 16 + 1 + 100, 2 * (2 + 3 + 4 + 1 + 10), 20.0)]
    assert told.values == {0: [4, 6, 8], 2: [-2, 20]}
    assert told.operate(2, Copy("b", AT), Axpy(AT, -1.0, "b"), Dot("b", "b"), Drop(["b"])) == [told.operated(2, 520.0)]
    assert told.values == {0: [0, 0, 0], 2: [0, 0]}
    assert told.operate(3) == [told.operated(3)]


def test_a_batch_that_comes_again_is_answered_again_and_not_carried_out_again(told):
    batch = [Scale(AT, 2.0), Absolute(AT)]
    answer = [told.operated(1, 40.0)]
    assert [told.operate(1, *batch) for _ in range(3)] == [answer] * 3
    assert told.values == {0: [4, 6, 8], 2: [-2, 20]}
    assert told.operate(2, *batch) == [told.operated(2, 80.0)]
    assert told.operate(2, *batch, sender="coordinator.1") == [told.operated(2, 80.0, to="coordinator.1")]


def test_a_batch_that_leaves_one_out_is_refused(told):
    told.operate(1, Scale(AT, 2.0))
    for number in (3, 0, -1):
        with pytest.raises(NetworkError, match=f"has number {number}; the last was 1") as caught:
            told.operate(number, Scale(AT, 2.0))
        assert caught.value.code == "E550"
    assert told.values == {0: [4, 6, 8], 2: [-2, 20]}


def test_a_batch_is_refused_while_another_waits_for_gradients(told):
    assert told.operate(1, Evaluate(AT, "g", 0, 1)) == []
    with pytest.raises(NetworkError, match="has number 2; the last was 0"):
        told.operate(2, Scale(AT, 2.0))


@pytest.mark.parametrize(
    "batch", [[{"type": "no such"}], [{"type": "dot", "a": 1, "b": "x"}], [3], "dot", [{"type": "dot", "a": "x"}]]
)
def test_what_is_no_batch_is_refused(told, batch):
    with pytest.raises(NetworkError, match="is no batch of operations"):
        told.say("coordinator", "operate", {"epoch": 1, "number": 1, "batch": batch})
    assert told.operate(1, Absolute(AT)) == [told.operated(1, 20.0)]


def test_a_vector_that_is_not_there_is_named(told):
    told.operate(1, Copy("b", AT))
    with pytest.raises(NetworkError, match="names vector 'gone'; there are at, b"):
        told.operate(2, Scale("gone", 2.0))


def test_a_message_of_an_unknown_kind_is_refused(told):
    with pytest.raises(NetworkError, match="is of an unknown kind"):
        told.say("worker-0.0", "push", {})


def test_what_belongs_to_another_epoch_changes_nothing(told):
    told.back(3, 0)
    for epoch in (1, 2, 4):
        assert told.operate(1, Scale(AT, 2.0), epoch=epoch) == []
        assert told.commit(0, epoch=epoch) == []
    assert told.values == BEGIN
    assert not told.folder.exists()
    assert told.operate(1, Absolute(AT)) == [told.operated(1, 20.0)]


# Gradients


def test_evaluating_waits_for_the_gradients_of_all_slices(told):
    """Four portions of 3, 3, 3 and 1 samples; the answer comes with the last gradient, and its share is nothing."""
    assert told.operate(1, Evaluate(AT, "g", 0, 4), Dot("g", "g")) == []
    assert told.gradient(1, 1, 0, 1.0, 2.0, 3.0) == [summed()]
    assert told.gradient(1, 1, 1, 9.0, 8.0, 7.0) == [summed()]
    assert told.gradient(1, 2, 0, 5.0, 10.0, edge=2, sender="worker-0.2") == [
        summed("worker-0.2"),
        told.operated(1, 0.0, 3 * 1.0 + 0.25 + 1.0),
    ]
    assert told.vectors[0]["g"].tolist() == [1, 1, 1]
    assert told.vectors[2]["g"].tolist() == [0.5, 1]
    assert told.values == BEGIN


def test_the_mean_is_over_the_samples_of_the_portions(told):
    told.operate(1, Evaluate(AT, "g", 2, 4))  # 3 + 1 samples
    told.gradient(1, 1, 0, 4.0, 8.0, 12.0)
    told.gradient(1, 1, 0, 2.0, 4.0, edge=2)
    assert told.vectors[0]["g"].tolist() == [1, 2, 3]
    assert told.vectors[2]["g"].tolist() == [0.5, 1]


def test_several_evaluations_of_a_batch_are_open_together(told):
    batch = [
        *(Copy("b", AT), Absolute(AT), Evaluate(AT, "g", 0, 1), Evaluate("b", "h", 1, 4)),
        *(Combine("c", [(1.0, "g"), (1.0, "h")]), Absolute("c"), Evaluate("c", "k", 3, 4)),
    ]
    assert told.operate(1, *batch) == []
    assert told.gradient(1, 2, 0, 7.0, 7.0, 7.0, place=3) == [summed()]
    assert told.gradient(1, 2, 0, 7.0, 7.0, place=3, edge=2) == [summed()]
    assert told.gradient(1, 0, 0, 3.0, 3.0, 3.0, place=2) == [summed()]
    assert told.vectors[0].keys() == {AT, "b"}
    assert told.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=6) == [summed()]  # not open yet
    assert told.gradient(1, 0, 0, 6.0, 3.0, place=2, edge=2) == [summed()]
    assert told.vectors[2]["c"].tolist() == [3, 2]
    assert told.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=6) == [summed()]
    assert told.gradient(1, 0, 0, 4.0, 5.0, place=6, edge=2) == [summed(), told.operated(1, 20.0, 0, 0, 11.0, 0)]
    assert told.vectors[2]["k"].tolist() == [4, 5]


def test_every_portion_counts_once_however_often_it_comes(told):
    told.operate(1, Evaluate(AT, "g", 0, 4))
    for who in ("worker-0.0", "worker-1.0", "worker-0.0"):
        assert told.gradient(1, 1, 0, 5.0, 5.0, 5.0, sender=who) == [summed(who)]
    assert told.gradient(1, 0, 1, 1.0, 1.0, 1.0) == [summed()]  # it was in that
    told.gradient(1, 1, 1, 5.0, 5.0, 5.0)
    told.gradient(1, 2, 0, 1.0, 1.0, edge=2)
    assert told.vectors[0]["g"].tolist() == [1, 1, 1]


def test_gradients_that_nobody_waits_for_are_acknowledged_and_change_nothing(told):
    assert told.gradient(1, 0, 0, 1.0, 1.0, 1.0) == [summed()]  # before its batch
    told.operate(1, Scale(AT, 1.0), Evaluate(AT, "g", 0, 1))
    for place in (0, 2, 7):
        assert told.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=place) == [summed()]
    for number in (0, 2):
        assert told.gradient(number, 0, 0, 1.0, 1.0, 1.0, place=1) == [summed()]
    for epoch in (2, 9):
        assert told.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=1, epoch=epoch) == [summed()]
    told.gradient(1, 0, 0, 6.0, 6.0, 6.0, place=1)
    told.gradient(1, 0, 0, 6.0, 6.0, place=1, edge=2)
    assert told.gradient(1, 0, 0, 1.0, 1.0, place=1, edge=2) == [summed()]  # after its batch
    assert told.vectors[0]["g"].tolist() == [2, 2, 2]
    assert told.shard.statistics()["late"] == 9
    assert told.shard.statistics()["gradients"] == 2


def test_gradients_of_another_epoch_are_ignored(told):
    told.operate(1, Evaluate(AT, "g", 0, 1))
    told.gradient(1, 0, 0, 6.0, 6.0, 6.0)
    told.back(2, 0)
    told.operate(1, Evaluate(AT, "g", 0, 1))
    assert told.gradient(1, 0, 0, 6.0, 6.0, edge=2, epoch=1) == [summed()]
    assert told.gradient(1, 0, 0, 3.0, 3.0, edge=2) == [summed()]
    assert told.gradient(1, 0, 0, 9.0, 9.0, 9.0) == [summed(), told.operated(1, 0.0)]
    assert told.vectors[0]["g"].tolist() == [3, 3, 3]
    assert told.vectors[2]["g"].tolist() == [1, 1]


def test_a_batch_that_comes_again_while_it_waits_is_answered_when_it_is_done_to_who_asked_last(told):
    told.operate(1, Evaluate(AT, "g", 0, 1), Scale(AT, 2.0))
    told.gradient(1, 0, 0, 3.0, 3.0, 3.0)
    assert told.operate(1, Evaluate(AT, "g", 0, 1), Scale(AT, 2.0), sender="coordinator.1") == []
    assert told.gradient(1, 0, 0, 3.0, 3.0, edge=2) == [summed(), told.operated(1, 0.0, to="coordinator.1")]
    assert told.values == {0: [4, 6, 8], 2: [-2, 20]}


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (torch.zeros(3),),
        (torch.zeros(2, dtype=torch.float64),),
        (torch.zeros(4, dtype=torch.float64),),
        (torch.zeros(3, 1, dtype=torch.float64),),
        (torch.zeros(3, dtype=torch.int64),),
        (torch.zeros(3, dtype=torch.float64),) * 2,
    ],
    ids=lambda tensors: ",".join(f"{t.dtype}{list(t.shape)}" for t in tensors) or "nothing",
)
def test_a_gradient_of_other_tensors_is_refused(told, tensors):
    told.operate(1, Evaluate(AT, "g", 0, 1))
    with pytest.raises(NetworkError, match=r"the slice is torch\.float64 \[3\]") as caught:
        told.gradient(1, 0, 0, tensors=tensors)
    assert (caught.value.code, "of machine 0" in caught.value.facts) == ("E550", True)


@pytest.mark.parametrize(("level", "index"), [(0, 4), (3, 0), (1, 2), (-1, 0), (0, -1)])
def test_a_gradient_of_portions_that_are_not_there_is_refused(told, level, index):
    told.operate(1, Evaluate(AT, "g", 0, 4))
    with pytest.raises(NetworkError, match=f"is of node {index} of level {level}, of 4 leaves"):
        told.gradient(1, level, index, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("kind", ["point", "gradient", "read"])
def test_a_slice_of_another_shard_is_refused(told, kind):
    told.operate(1, Evaluate(AT, "g", 0, 1))
    with pytest.raises(NetworkError, match="names slice 1, which is not of this shard"):
        told.say("worker-0.0", kind, {"epoch": 1, "number": 1, "place": 0, "level": 0, "index": 0}, edge=1)


# Points


def test_points_are_those_of_the_evaluation(told):
    told.operate(1, Combine("trial", [(2.0, AT)]), Evaluate("trial", "g", 0, 1), Evaluate(AT, "h", 1, 2))
    assert told.point(1, 1) == [("worker-0.0", "point", {}, [[4, 6, 8]])]
    assert told.point(1, 1, edge=2, sender="worker-0.2") == [("worker-0.2", "point", {}, [[-2, 20]])]
    assert told.point(1, 2, edge=2) == [("worker-0.0", "point", {}, [[-1, 10]])]


def test_an_answer_has_the_step_and_the_slice_of_its_question(told):
    told.operate(1, Evaluate(AT, "g", 0, 1))
    body = {"epoch": 1, "number": 1, "place": 0, "level": 0, "index": 0}
    for kind, answer, tensors in (
        ("point", "point", ()),
        ("read", "values", ()),
        ("gradient", "summed", (torch.zeros(2, dtype=torch.float64),)),
    ):
        ((to, message),) = told.shard.handle(Message(kind, 17, 0, 2, body, tensors, "worker-3.2"))
        assert (to, message.kind, message.step, message.edge) == ("worker-3.2", answer, 17, 2)
        assert message.borrowed == bool(message.tensors)
    stale = told.shard.handle(Message("point", 18, 0, 2, body | {"number": 0}, (), "worker-3.2"))
    assert [(to, m.step, m.edge, m.body) for to, m in stale] == [("worker-3.2", 18, 2, {"stale": True})]


def test_points_that_nobody_wants_any_more_are_stale(told):
    stale = [("worker-0.0", "point", {"stale": True}, [])]
    told.operate(1, Evaluate(AT, "g", 0, 1))
    assert told.point(0) == stale
    for edge, count in ((0, 3), (2, 2)):
        told.gradient(1, 0, 0, *[1.0] * count, edge=edge)
    told.operate(2, Scale(AT, 1.0))
    assert told.point(1) == stale
    told.back(5, 0)
    for epoch in (1, 4):
        assert told.point(7, epoch=epoch) == stale


def test_a_point_of_what_is_done_can_be_had_until_the_next_batch(told):
    """Whoever has told a loss may be lost with it; another then needs the point again."""
    told.operate(1, Copy("trial", AT), Evaluate("trial", "g", 0, 1), Scale(AT, 3.0))
    assert told.gradient(1, 0, 0, 3.0, 3.0, 3.0, place=1) == [summed()]
    assert told.gradient(1, 0, 0, 3.0, 3.0, place=1, edge=2) == [summed(), told.operated(1, 0.0)]
    assert told.point(1, 1) == [("worker-0.0", "point", {}, [[2, 3, 4]])]
    assert told.gradient(1, 0, 0, 9.0, 9.0, 9.0, place=1) == [summed()]
    assert told.vectors[0]["g"].tolist() == [1, 1, 1]


def test_a_point_that_is_to_come_is_waited_for(told):
    """Of a later batch, of a later place in the batch, and of a later epoch."""
    assert told.point(1, 1, sender="early") == []
    assert told.point(1, 3, edge=2, sender="late") == []
    assert told.point(2, 0, sender="next") == []
    assert told.point(1, 0, epoch=2, sender="far") == []
    batch = [Scale(AT, 2.0), Evaluate(AT, "g", 0, 1), Scale(AT, 2.0), Evaluate(AT, "h", 0, 1)]
    assert told.operate(1, *batch) == [("early", "point", {}, [[4, 6, 8]])]
    told.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=1)
    found = told.gradient(1, 0, 0, 1.0, 1.0, place=1, edge=2)
    assert found == [summed(), ("late", "point", {}, [[-4, 40]])]
    told.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=3)
    assert told.gradient(1, 0, 0, 1.0, 1.0, place=3, edge=2) == [summed(), told.operated(1, 0.0, 0.0)]
    assert told.operate(2, Evaluate(AT, "g", 0, 1)) == [("next", "point", {}, [[8, 12, 16]])]
    assert told.back(2, 0) == [("coordinator", "rolled back", {"epoch": 2}, [])]
    assert told.operate(1, Evaluate(AT, "g", 0, 1)) == [("far", "point", {}, [[2, 3, 4]])]


def test_a_point_that_was_waited_for_may_have_become_stale(told):
    assert told.point(4, 0, sender="worker-7.0") == []
    rolled_back = ("coordinator", "rolled back", {"epoch": 2}, [])
    assert told.back(2, 0) == [rolled_back, ("worker-7.0", "point", {"stale": True}, [])]


def test_a_point_of_an_operation_without_one_is_refused(told):
    told.operate(1, Scale(AT, 1.0), Evaluate(AT, "g", 0, 1))
    with pytest.raises(NetworkError, match="is of operation 0: Scale"):
        told.point(1, 0)
    assert told.point(1, 2) == [("worker-0.0", "point", {"stale": True}, [])]


def test_who_reads_before_anything_is_there_waits(tmp_path):
    told = Told(tmp_path, epoch=0)
    assert told.read(0) == []
    assert told.point(1, epoch=1, sender="worker-1.0") == []
    assert told.back(1, 0) == [
        ("coordinator", "rolled back", {"epoch": 1}, []),
        ("worker-0.0", "values", {}, [[2, 3, 4]]),
    ]
    assert told.operate(1, Evaluate(AT, "g", 0, 1)) == [("worker-1.0", "point", {}, [[2, 3, 4]])]


# Commits


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


# What it tells


def test_holdings_are_the_parameters(told):
    told.operate(1, Scale(AT, 2.0), Copy("other", AT))
    held = told.shard.holdings()
    assert [(one.slice, one.value.tolist(), one.state, one.version) for one in held] == [
        (SLICES[0], [4, 6, 8], {}, 1),
        (SLICES[1], [-2, 20], {}, 1),
    ]


def test_statistics_count_what_was_done(told):
    told.operate(1, Copy("b", AT), Dot("b", "b"))
    told.operate(1, Copy("b", AT), Dot("b", "b"))
    told.operate(2, Evaluate(AT, "g", 0, 1))
    told.point(2)
    told.point(2, edge=2)
    told.point(1)
    told.gradient(2, 0, 0, 1.0, 1.0, 1.0)
    told.gradient(1, 0, 0, 1.0, 1.0, edge=2)
    told.gradient(2, 0, 0, 1.0, 1.0, edge=2)
    told.read(0)
    assert told.shard.statistics() == {
        "shard": 1,
        "vectors": 3,
        "operations": 3,
        "round_trips": 3,
        "gradients": 2,
        "late": 2,
        "bytes_in": 8 * (3 + 2 + 2),
        "bytes_out": 8 * (3 + 2 + 3),
    }


def test_nothing_goes_on_unasked(told):
    assert (told.shard.turn(), told.shard.close(), told.shard.busy) == ([], [], False)


def test_a_shard_without_slices_answers(tmp_path):
    told = Told(tmp_path, slices=[])
    assert told.operate(1, Dot(AT, AT), Evaluate(AT, "g", 0, 4), Largest("g")) == [told.operated(1, 0.0, 0.0, 0.0)]
    assert told.commit(1) == [("coordinator", "committed", {"epoch": 1, "number": 1}, [])]
    assert told.back(2, 1) == [("coordinator", "rolled back", {"epoch": 2}, [])]


def test_first_values_are_not_the_callers_own(told):
    told.operate(1, Scale(AT, 2.0))
    assert WHOLE[0].tolist() == list(range(8))
