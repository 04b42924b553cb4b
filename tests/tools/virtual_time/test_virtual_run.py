"""Whole runs in virtual time: what they compute, how long it takes, and that it can be repeated."""

import gc

import pytest
import torch
from small_simulations import BATCH, make_model, make_samples, make_spec, simulate

from cutset.errors import UsageError
from cutset.models.sample_stream import SampleStream
from cutset.tools.virtual_time.machines import SimulatedMachines
from cutset.tools.virtual_time.virtual_run import VirtualRun

EVEN = SimulatedMachines(step_s=2.0)  # that all take the same time, and a network without any
ALL = ["downpour", "downpour:fetch=2,push=4", "downpour:overlap=true", "ssp:staleness=1", "sync", "sync:backups=1"]
ALL += ["averaging:every=4", "diloco:every=4,overlap=true", "easgd:every=2", "hogwild"]


def train_alone(steps: int, batch: int, lr: float) -> torch.Tensor:
    """Return the parameters after so many steps of plain SGD on batches of one process."""
    model, samples = make_model(), make_samples()
    values, stream = model.initial.clone(), SampleStream(len(samples.train), batch=batch, seed=0)
    for step in range(steps):
        gradient = torch.zeros_like(values)
        model.add_gradient(values, gradient, samples.train.rows(stream.indices(step)), step=step, seed=0)
        values.sub_(gradient, alpha=lr)
    return values


@pytest.mark.parametrize("method", ALL)
def test_every_method_learns_and_a_seed_gives_the_same_run_again(method: str) -> None:
    first, second = (simulate(method, samples=128 * BATCH) for _ in range(2))
    assert first == second
    assert sum(first.steps) == 128
    assert not first.failure
    assert (first.points[-1].test_loss or 9) < (first.points[0].test_loss or 0)
    assert simulate(method, samples=128 * BATCH, seed=1).seconds != first.seconds


def test_one_replica_takes_the_steps_of_one_process() -> None:
    run = VirtualRun(make_spec(replicas=1, machines=EVEN), make_model(), make_samples())
    result = run.run()
    assert result.seconds == pytest.approx(64 * 2.0)
    assert torch.allclose(run.read_values(), train_alone(64, BATCH, 0.1), atol=1e-6)


def test_synchronous_replicas_take_the_steps_of_one_process_with_a_larger_batch() -> None:
    run = VirtualRun(make_spec("sync", machines=EVEN), make_model(), make_samples())
    result = run.run()
    assert result.seconds == pytest.approx(16 * 2.0)
    assert result.updates == 16
    assert torch.allclose(run.read_values(), train_alone(16, 4 * BATCH, 0.1), atol=1e-5)


def test_replicas_that_wait_for_each_other_are_as_fast_as_the_slowest() -> None:
    machines = SimulatedMachines(step_s=1.0, stragglers=1, slowdown=5.0)
    assert simulate("sync", machines=machines).seconds == pytest.approx(16 * 5.0)
    assert simulate("downpour", machines=machines).seconds < 16 * 2.0


def test_pushes_are_as_stale_as_there_are_other_replicas() -> None:
    """Between the fetch of a replica and its push each other one pushes once, on average."""
    run = simulate(samples=400 * BATCH)
    assert run.staleness["mean"] == pytest.approx(3.0, rel=0.03)
    assert simulate("ssp:staleness=0").staleness["max"] <= 2 * 3


def test_a_slow_network_makes_replicas_wait() -> None:
    slow = SimulatedMachines(step_s=1.0, bandwidth=1000.0)  # bytes/s, for 178 parameters each way
    run = simulate(machines=slow)
    assert run.waiting > 0.5
    assert run.seconds > simulate(machines=EVEN).seconds


def test_a_busy_shard_makes_replicas_wait() -> None:
    run = simulate(machines=SimulatedMachines(step_s=1.0, message_s=0.5))
    assert run.shards_busy > 0.9
    assert simulate(machines=SimulatedMachines(step_s=1.0, message_s=0.5), shards=2).shards_busy > 0.9


def test_a_lost_replica_takes_no_more_steps_and_the_others_do_its_work() -> None:
    run = simulate(losses=((3.5, 1),), machines=SimulatedMachines(step_s=1.0))
    assert run.steps[1] == 3
    assert sum(run.steps) in (62, 63)  # those that it held are lost with it


def test_a_run_ends_at_its_target_and_when_the_time_is_over() -> None:
    assert simulate(seconds=7.0).seconds == pytest.approx(7.0)
    reached = simulate(samples=1000 * BATCH, target=0.9, points=200)
    assert sum(reached.steps) < 900
    assert (reached.points[-1].test_accuracy or 0) >= 0.9
    assert reached.seconds_to(0.9) <= reached.seconds


def test_a_run_that_diverges_says_so() -> None:
    run = simulate(lr=1e30)
    assert "nan" in run.failure


@pytest.mark.parametrize("method", ["allreduce", "sandblaster"])
def test_methods_without_shards_are_not_simulated_so(method: str) -> None:
    with pytest.raises(UsageError, match=method):
        simulate(method)


def test_a_method_that_does_not_fit_its_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match="compensates"):
        simulate("sync", optimizer="dc-asgd-c")


@pytest.mark.run
def test_many_replicas_cost_little_more_than_their_parameters() -> None:
    """A replica that waits has neither a gradient nor a push of its own."""
    model, replicas, counts = make_model(), 100, list[int]()

    def count(point: object) -> None:
        whole = {
            tensor.untyped_storage().data_ptr()
            for tensor in gc.get_objects()
            if type(tensor) is torch.Tensor and tensor.untyped_storage().nbytes() == model.initial.nbytes
        }
        counts.append(len(whole))

    spec = make_spec(optimizer="adagrad", lr=0.001, replicas=replicas, samples=400 * BATCH)
    gc.collect()  # what the tests before have left
    VirtualRun(spec, model, make_samples(), on_point=count).run()
    assert replicas < max(counts) < 1.6 * replicas  # all push at about the same time, and what is on its way counts
