"""A shard of vectors sums the gradients that workers send, each portion once."""

import pytest
import torch
from scripted_shard import INITIAL_VALUES, summed
from scripted_shard import scripted as scripted

from cutset.errors import NetworkError
from cutset.ps.sandblaster.vector_ops import ITERATE, Combine, Copy, Dot, Evaluate, L1Norm, Scale


def test_evaluating_waits_for_the_gradients_of_all_slices(scripted):
    """Four portions of 3, 3, 3 and 1 samples; the answer comes with the last gradient, and its share is nothing."""
    assert scripted.operate(1, Evaluate(ITERATE, "g", 0, 4), Dot("g", "g")) == []
    assert scripted.gradient(1, 1, 0, 1.0, 2.0, 3.0) == [summed()]
    assert scripted.gradient(1, 1, 1, 9.0, 8.0, 7.0) == [summed()]
    assert scripted.gradient(1, 2, 0, 5.0, 10.0, edge=2, sender="worker-0.2") == [
        summed("worker-0.2"),
        scripted.operated(1, 0.0, 3 * 1.0 + 0.25 + 1.0),
    ]
    assert scripted.vectors[0]["g"].tolist() == [1, 1, 1]
    assert scripted.vectors[2]["g"].tolist() == [0.5, 1]
    assert scripted.values == INITIAL_VALUES


def test_the_mean_is_over_the_samples_of_the_portions(scripted):
    scripted.operate(1, Evaluate(ITERATE, "g", 2, 4))  # 3 + 1 samples
    scripted.gradient(1, 1, 0, 4.0, 8.0, 12.0)
    scripted.gradient(1, 1, 0, 2.0, 4.0, edge=2)
    assert scripted.vectors[0]["g"].tolist() == [1, 2, 3]
    assert scripted.vectors[2]["g"].tolist() == [0.5, 1]


def test_several_evaluations_of_a_batch_are_open_together(scripted):
    batch = [
        *(Copy("b", ITERATE), L1Norm(ITERATE), Evaluate(ITERATE, "g", 0, 1), Evaluate("b", "h", 1, 4)),
        *(Combine("c", [(1.0, "g"), (1.0, "h")]), L1Norm("c"), Evaluate("c", "k", 3, 4)),
    ]
    assert scripted.operate(1, *batch) == []
    assert scripted.gradient(1, 2, 0, 7.0, 7.0, 7.0, place=3) == [summed()]
    assert scripted.gradient(1, 2, 0, 7.0, 7.0, place=3, edge=2) == [summed()]
    assert scripted.gradient(1, 0, 0, 3.0, 3.0, 3.0, place=2) == [summed()]
    assert scripted.vectors[0].keys() == {ITERATE, "b"}
    assert scripted.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=6) == [summed()]  # not open yet
    assert scripted.gradient(1, 0, 0, 6.0, 3.0, place=2, edge=2) == [summed()]
    assert scripted.vectors[2]["c"].tolist() == [3, 2]
    assert scripted.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=6) == [summed()]
    assert scripted.gradient(1, 0, 0, 4.0, 5.0, place=6, edge=2) == [
        summed(),
        scripted.operated(1, 20.0, 0, 0, 11.0, 0),
    ]
    assert scripted.vectors[2]["k"].tolist() == [4, 5]


def test_every_portion_counts_once_however_often_it_comes(scripted):
    scripted.operate(1, Evaluate(ITERATE, "g", 0, 4))
    for who in ("worker-0.0", "worker-1.0", "worker-0.0"):
        assert scripted.gradient(1, 1, 0, 5.0, 5.0, 5.0, sender=who) == [summed(who)]
    assert scripted.gradient(1, 0, 1, 1.0, 1.0, 1.0) == [summed()]  # it was in that
    scripted.gradient(1, 1, 1, 5.0, 5.0, 5.0)
    scripted.gradient(1, 2, 0, 1.0, 1.0, edge=2)
    assert scripted.vectors[0]["g"].tolist() == [1, 1, 1]


def test_gradients_that_nobody_waits_for_are_acknowledged_and_change_nothing(scripted):
    assert scripted.gradient(1, 0, 0, 1.0, 1.0, 1.0) == [summed()]  # before its batch
    scripted.operate(1, Scale(ITERATE, 1.0), Evaluate(ITERATE, "g", 0, 1))
    for place in (0, 2, 7):
        assert scripted.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=place) == [summed()]
    for number in (0, 2):
        assert scripted.gradient(number, 0, 0, 1.0, 1.0, 1.0, place=1) == [summed()]
    for epoch in (2, 9):
        assert scripted.gradient(1, 0, 0, 1.0, 1.0, 1.0, place=1, epoch=epoch) == [summed()]
    scripted.gradient(1, 0, 0, 6.0, 6.0, 6.0, place=1)
    scripted.gradient(1, 0, 0, 6.0, 6.0, place=1, edge=2)
    assert scripted.gradient(1, 0, 0, 1.0, 1.0, place=1, edge=2) == [summed()]  # after its batch
    assert scripted.vectors[0]["g"].tolist() == [2, 2, 2]
    assert scripted.shard.statistics()["late"] == 9
    assert scripted.shard.statistics()["gradients"] == 2


def test_gradients_of_another_epoch_are_ignored(scripted):
    scripted.operate(1, Evaluate(ITERATE, "g", 0, 1))
    scripted.gradient(1, 0, 0, 6.0, 6.0, 6.0)
    scripted.roll_back(2, 0)
    scripted.operate(1, Evaluate(ITERATE, "g", 0, 1))
    assert scripted.gradient(1, 0, 0, 6.0, 6.0, edge=2, epoch=1) == [summed()]
    assert scripted.gradient(1, 0, 0, 3.0, 3.0, edge=2) == [summed()]
    assert scripted.gradient(1, 0, 0, 9.0, 9.0, 9.0) == [summed(), scripted.operated(1, 0.0)]
    assert scripted.vectors[0]["g"].tolist() == [3, 3, 3]
    assert scripted.vectors[2]["g"].tolist() == [1, 1]


def test_a_batch_that_comes_again_while_it_waits_is_answered_when_it_is_done_to_who_asked_last(scripted):
    scripted.operate(1, Evaluate(ITERATE, "g", 0, 1), Scale(ITERATE, 2.0))
    scripted.gradient(1, 0, 0, 3.0, 3.0, 3.0)
    assert scripted.operate(1, Evaluate(ITERATE, "g", 0, 1), Scale(ITERATE, 2.0), sender="coordinator.1") == []
    assert scripted.gradient(1, 0, 0, 3.0, 3.0, edge=2) == [summed(), scripted.operated(1, 0.0, to="coordinator.1")]
    assert scripted.values == {0: [4, 6, 8], 2: [-2, 20]}


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
def test_a_gradient_of_other_tensors_is_refused(scripted, tensors):
    scripted.operate(1, Evaluate(ITERATE, "g", 0, 1))
    with pytest.raises(NetworkError, match=r"the slice is torch\.float64 \[3\]") as caught:
        scripted.gradient(1, 0, 0, tensors=tensors)
    assert (caught.value.code, "of machine 0" in caught.value.facts) == ("E550", True)


@pytest.mark.parametrize(("level", "index"), [(0, 4), (3, 0), (1, 2), (-1, 0), (0, -1)])
def test_a_gradient_of_portions_that_are_not_there_is_refused(scripted, level, index):
    scripted.operate(1, Evaluate(ITERATE, "g", 0, 4))
    with pytest.raises(NetworkError, match=f"is of node {index} of level {level}, of 4 leaves"):
        scripted.gradient(1, level, index, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("kind", ["point", "gradient", "read"])
def test_a_slice_of_another_shard_is_refused(scripted, kind):
    scripted.operate(1, Evaluate(ITERATE, "g", 0, 1))
    with pytest.raises(NetworkError, match="names slice 1, which is not of this shard"):
        scripted.say("worker-0.0", kind, {"epoch": 1, "number": 1, "place": 0, "level": 0, "index": 0}, edge=1)
