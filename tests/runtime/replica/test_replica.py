"""A replica in threads: whole results from pieces, and an error in one worker that ends all."""

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from cutting import STEP, finest_cut, load, predict_cut, subject
from places import SUPPORT
from torch import Tensor, nn

from cutset.errors import BadInput, NetworkError, ProcessLost
from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.channel.faults import Disconnect, DropMessage, Fault, Kill, Reorder
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.program import Program, programs


def parts(name: str, machines: int = 3) -> list[Program]:
    graph = subject(name).graph
    return programs(lower_cut(graph, finest_cut(graph, machines)), training=True)


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
        (DropMessage("worker-0.0", "worker-0.1", 0), NetworkError),
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
    with Replica(parts("mlp", 2), faults=[Disconnect("worker-0.0", "worker-0.1")]) as replica:
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
    with Replica(programs(lower_cut(of.graph, one_machine_cut(of.graph)), training=True)) as replica:
        load(replica, of)
        replica.step(of.batch, STEP)
        assert replica.workers[0].mailbox.channel.statistics() == {}


def evaluating(name: str, machines: int = 3) -> Replica:
    of = subject(name)
    spelled = lower_cut(of.graph, finest_cut(of.graph, machines))
    replica = Replica(
        programs(lower_cut(of.evaluation, carry_cut(of.graph, spelled.cut, of.evaluation)), training=False)
    )
    load(replica, of)
    return replica


def samples(count: int) -> Data:
    generator = torch.Generator().manual_seed(3)
    return Data((torch.randn(count, 12, dtype=torch.float64, generator=generator),), ())


@pytest.mark.parametrize("count", [5, 6, 48, 50])
def test_predictions_come_batch_by_batch_in_order(count: int) -> None:
    model, _ = subject("mlp").fresh()
    data = samples(count)
    with evaluating("mlp") as replica, torch.no_grad():
        found = list(replica.predict(data))
        assert [len(output) for output in found] == [min(6, count - start) for start in range(0, count, 6)]
        torch.testing.assert_close(torch.cat(found), model.eval()(*data.inputs), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    "finish",
    [
        lambda layer, x: layer(x).T,
        lambda layer, x: layer(x) - layer(x).mean(0),
        lambda layer, x: layer.weight.expand(len(x), 6, 6) * 2,
    ],
    ids=["time first", "compared", "of no input"],
)
def test_a_small_batch_is_not_filled_up_where_that_would_change_what_is_predicted(
    finish: Callable[[nn.Linear, Tensor], Tensor],
) -> None:
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return finish(self.layer, x)

    model, x = Body().eval(), torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
    graph = capture(model, None, [x])[0]
    with Replica(programs(lower_cut(graph, one_machine_cut(graph)), training=False)) as replica:
        for worker in replica.workers:
            worker.states.load(collect_state(model, nn.functional.mse_loss, {}).__getitem__)
        with torch.no_grad():
            torch.testing.assert_close(next(replica.predict([Data((x,), ())])), model(x))
        for few in (Data((x[:2],), ()), [Data((x,), ()), Data((x[:2],), ())], Data((torch.cat([x, x[:2]]),), ())):
            with pytest.raises(BadInput, match="a batch of 2 samples; the model was planned for 6") as error:
                list(replica.predict(few, 1))
            assert error.value.code == "E343"


def test_a_small_batch_is_filled_up_where_nobody_knows_whether_samples_are_compared() -> None:
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(6, 6, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x[:, None])[0]

    model, x = Body().eval(), torch.randn(8, 6, generator=torch.Generator().manual_seed(3))
    graph = capture(model, None, [x[:6]])[0]
    with Replica(programs(lower_cut(graph, one_machine_cut(graph)), training=False)) as replica, torch.no_grad():
        replica.workers[0].states.load(collect_state(model, nn.functional.mse_loss, {}).__getitem__)
        torch.testing.assert_close(torch.cat(list(replica.predict(Data((x,), ())))), model(x))


def test_predictions_are_made_while_the_user_looks_at_the_first() -> None:
    drawn = list[int]()

    def endless() -> Iterator[Data]:
        for number in itertools.count():
            drawn.append(number)
            yield samples(6)

    with evaluating("mlp") as replica:
        outputs = replica.predict(endless())
        first = next(outputs)
        assert torch.equal(first, next(outputs))
        outputs.close()  # type: ignore[attr-defined]
        assert 2 < len(drawn) <= 3 + max(worker.cap for worker in replica.workers)
        assert len(list(replica.predict(samples(7), 1))) == 2  # and may be asked again


def test_a_fault_while_predicting_is_raised_where_the_outputs_are_read() -> None:
    def broken() -> Iterator[Data]:
        yield samples(6)
        raise LookupError("the disk is gone")

    with evaluating("mlp") as replica, pytest.raises(LookupError, match="the disk is gone"):
        list(replica.predict(broken()))
    with evaluating("mlp") as replica, pytest.raises(BadInput, match=r"E343: 7 samples to predict; .* 6 at a time"):
        list(replica.predict([samples(7)]))


def test_a_replica_may_be_closed_while_it_predicts() -> None:
    with evaluating("mlp") as replica:
        outputs = replica.predict(samples(6) for _ in itertools.count())
        next(outputs)
    with contextlib.suppress(NetworkError):
        assert len(list(outputs)) < 100


def test_one_prediction_at_a_time() -> None:
    with evaluating("mlp") as replica:
        first = replica.predict(samples(6) for _ in range(50))
        next(first)
        with pytest.raises(BadInput, match="E346: this replica still predicts"):
            next(replica.predict(samples(6)))
        first.close()  # type: ignore[attr-defined]
        assert len(list(replica.predict(samples(6), 1))) == 1


def test_a_replica_does_what_it_was_made_for() -> None:
    with evaluating("mlp") as replica, pytest.raises(BadInput, match=r"E345: .* made to predict, not to step"):
        replica.step(samples(6), 0)
    with Replica(parts("mlp")) as replica, pytest.raises(BadInput, match=r"E345: .* made to step, not to predict"):
        next(replica.predict(samples(6)))


@pytest.mark.slow
def test_its_threads_compute_with_as_many_threads_as_the_process() -> None:
    child = subprocess.run(
        [sys.executable, f"{SUPPORT}/replica_bits.py"],
        env={**os.environ, "OMP_NUM_THREADS": "4", "MKL_CBWR": "AUTO"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert child.stdout == "the same bits\n"
