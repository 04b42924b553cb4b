"""A replica in threads: whole results from pieces, and an error in one worker that ends all."""

import pytest
import torch
from cutting import STEP, finest_cut, load, predict_cut, subject

from cutset.models.task import Data
from cutset.partition.cut import one_machine
from cutset.partition.errors import BadInput, NetworkError, ProcessLost
from cutset.partition.exchange import flow
from cutset.runtime.faults import Cut, Drop, Fault, Kill, Reorder
from cutset.runtime.program import Program, programs
from cutset.runtime.replica import Replica


def parts(name: str, machines: int = 3) -> list[Program]:
    graph = subject(name).graph
    return programs(flow(graph, finest_cut(graph, machines)), training=True)


def test_parameters_are_those_that_were_loaded() -> None:
    of = subject("conv")
    with Replica(parts("conv")) as replica:
        load(replica, of)
        expected = dict(of.fresh()[0].named_parameters())
        assert replica.parameters().keys() == expected.keys()
        for name, tensor in replica.parameters().items():
            assert torch.equal(tensor, expected[name])
            assert not tensor.requires_grad


def test_a_step_starts_from_zero_gradients() -> None:
    of = subject("mlp")
    with Replica(parts("mlp")) as replica:
        load(replica, of)
        replica.step(of.batch, STEP)
        first = replica.gradients()
        replica.step(of.batch, STEP)
        assert all(torch.equal(gradient, first[name]) for name, gradient in replica.gradients().items())


def test_a_prediction_is_in_rows_of_the_batch_wherever_it_was_computed() -> None:
    of = subject("mlp")
    output = predict_cut(of, finest_cut(of.graph, 3))
    assert output.shape == (6, 5)
    assert not output.requires_grad


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Kill("worker-0.1", nth=3), ProcessLost),
        (Drop("worker-0.0", "worker-0.1", 0), NetworkError),
        (Reorder("worker-0.1", "worker-0.0", 0), NetworkError),
    ],
    ids=["killed", "lost", "swapped"],
)
def test_a_fault_ends_all_workers_with_its_own_error(fault: Fault, error: type[Exception]) -> None:
    of = subject("conv")
    with Replica(parts("conv"), faults=[fault]) as replica:
        load(replica, of)
        with pytest.raises(error):
            replica.step(of.several(3), STEP)


def test_silence_is_an_error_that_says_what_was_wanted() -> None:
    of = subject("mlp")
    with Replica(parts("mlp", 2), faults=[Cut("worker-0.0", "worker-0.1")]) as replica:
        load(replica, of)
        for worker in replica.workers:
            worker.mailbox.timeout_s = 0.2
        with pytest.raises(NetworkError, match=r"E501: worker-0\.\d waited 0\.2 s .*; wanted: \w+ of worker-0\.\d"):
            replica.step(of.batch, STEP)


def test_a_mistake_of_the_caller_comes_back_as_it_is() -> None:
    of = subject("mlp")
    batch = Data(tuple(t[:4] for t in of.batch.inputs), tuple(t[:4] for t in of.batch.targets))
    with Replica(parts("mlp")) as replica:
        load(replica, of)
        with pytest.raises(BadInput, match="E343"):
            replica.step(batch, STEP)


def test_one_machine_needs_no_messages() -> None:
    of = subject("mlp")
    with Replica(programs(flow(of.graph, one_machine(of.graph)), training=True)) as replica:
        load(replica, of)
        replica.step(of.batch, STEP)
        assert replica.workers[0].mailbox.channel.statistics() == {}
