"""Sandblaster in virtual time: one run for the numbers, and how long its iterations take any number of replicas.

What L-BFGS computes does not depend on who computes which portion, so the numbers are those of one replica with the
real coordinator, shard and gradient worker. The times are those of the real work queue with simulated replicas: groups
are handed out as replicas become free, and late ones twice.
"""

import heapq
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from ...ps.methods.sandblaster import Sandblaster
from ...ps.sandblaster.coordinator import Coordinator
from ...ps.sandblaster.evaluation import GROUPS_PER_REPLICA
from ...ps.sandblaster.gradient_worker import GradientWorker
from ...ps.sandblaster.recovery_log import RecoveryLog
from ...ps.sandblaster.solver import Portions
from ...ps.sandblaster.vector_shard import VectorShard, slice_initial_values
from ...ps.sandblaster.work_queue import WorkQueue
from ...ps.slices.slicing import slice_parameters
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.worker.flat_gradient import FlatGradient
from ..sandblaster.roles import PortionData
from .machines import SimulatedMachines, StepDurations
from .network import VirtualChannel, VirtualNetwork
from .replica import SharedModel
from .results import Point
from .samples import SplitSamples
from .shard_queue import ShardQueue
from .world import VirtualTask, World

PORTION = 250  # samples that are computed at once


class IterationScore(msgspec.Struct, frozen=True):
    """What the parameters are worth after an iteration, and how many evaluations it took from the beginning."""

    number: int
    evaluations: int
    test_accuracy: float | None
    train_accuracy: float | None
    test_loss: float | None
    train_loss: float | None


def run_sandblaster(
    method: Sandblaster,
    model: SharedModel,
    samples: SplitSamples,
    *,
    seed: int = 0,
    on_portion: Callable[[int], object] = lambda done: None,
) -> list[IterationScore]:
    """Train by a batch method; return the scores before it and after each iteration."""
    world = World(seed)
    network = VirtualNetwork(world)
    portions, size = Portions(len(samples.train), PORTION), model.initial.numel()
    slices = slice_parameters([size], 1, max_elements=size + 16)
    with tempfile.TemporaryDirectory(prefix="cutset-bench-") as folder:
        shard = VectorShard(0, slices, portions, slice_initial_values({0: model.initial}), Path(folder))
        log = RecoveryLog(Path(folder) / "log", {})
        coordinator = Coordinator(method.make_solver(portions), portions, log, ["shard-0"])
        scores = [_score(model, samples, model.initial, 0, 0)]

        def take(message: Message) -> None:
            if message.kind == "iteration":
                body = message.body
                values = shard.slice_states()[0].value
                scores.append(_score(model, samples, values, body["number"], body["evaluations"]))

        network.connect(LAUNCHER, float("inf"), take)
        for name, handler in (("shard-0", shard), ("coordinator", coordinator)):
            ShardQueue(name, handler, network, bandwidth=float("inf"), service_s=lambda message: 0.0)

        def work() -> None:
            values, gradient = model.initial.clone(), torch.zeros_like(model.initial)
            data = PortionData(samples.train, portions, seed)

            def compute(portion: int, step: int) -> float:
                on_portion(step)
                return model.add_gradient(values, gradient, data.read(portion), step=step, seed=seed)

            mailbox = Mailbox(VirtualChannel("worker-0.0", network), timeout_s=float("inf"))
            flat = FlatGradient(gradient)
            GradientWorker(mailbox, slices, values, flat, compute, portions, coordinator="coordinator").run()

        task = VirtualTask(world, "worker-0.0", work)
        task.begin()
        for peer, message in coordinator.start():
            network.send("coordinator", peer, message)
        world.run(lambda: task.has_ended)
        world.end()
        log.close()
    return scores


def _score(
    model: SharedModel, samples: SplitSamples, values: torch.Tensor, number: int, evaluations: int
) -> IterationScore:
    test, train = (model.score(values, split, 500) for split in (samples.test, samples.seen))
    return IterationScore(number, evaluations, test.accuracy, train.accuracy, test.loss, train.loss)


class BatchWork(msgspec.Struct, frozen=True):
    """What an evaluation of all samples is for the machines.

    samples: of the batch. step_samples: those that a replica computes in `step_s`. parameters: bytes. vectors: that
    the shards read or write for an iteration, of which L-BFGS remembers two for each pair.
    """

    samples: int
    step_samples: int
    parameters: int
    vectors: int = 46


def time_iterations(
    scores: list[IterationScore], work: BatchWork, machines: SimulatedMachines, replicas: int, *, seed: int = 0
) -> list[Point]:
    """Return the scores as a learning curve: with the seconds that so many replicas would take."""
    times = [StepDurations(machines, replica, seed) for replica in range(replicas)]
    vectors_s = work.vectors * work.parameters / machines.service_bandwidth + 4 * machines.latency_s
    seconds, evaluations, points = 0.0, 0, list[Point]()
    for score in scores:
        while evaluations < score.evaluations:
            seconds += time_evaluation(work, machines, times)
            evaluations += 1
        seconds += vectors_s if score.number else 0.0
        points.append(
            Point(
                seconds,
                evaluations * work.samples,
                score.test_accuracy,
                score.train_accuracy,
                score.test_loss,
                score.train_loss,
            )
        )
    return points


def time_evaluation(work: BatchWork, machines: SimulatedMachines, times: list[StepDurations]) -> float:
    """Return the seconds of one evaluation: fetching the point, all groups of portions, and pushing the sums."""
    replicas = len(times)
    groups = max(1, min(GROUPS_PER_REPLICA * replicas, work.samples))
    part = work.samples / groups / work.step_samples  # of a step, that a group takes
    own_s = work.parameters / machines.bandwidth + 2 * machines.latency_s
    # All fetch the same point and push a sum for each stretch of groups; the shards' cards are shared by all.
    shared_s = replicas * work.parameters / machines.shard_bandwidth
    exchange_s = max(own_s, shared_s)
    return 2 * exchange_s + time_queue(WorkQueue(groups), replicas, lambda replica: times[replica].draw(part))


def time_queue(queue: WorkQueue, replicas: int, take_seconds: Callable[[int], float]) -> float:
    """Return when replicas have done all groups of a queue. take_seconds: returns what a replica takes for its next."""
    events = [(0.0, replica, -1) for replica in range(replicas)]
    heapq.heapify(events)
    now = 0.0
    while not queue.is_complete:
        now, replica, group = heapq.heappop(events)
        if group >= 0:
            queue.finish(str(replica), group)
        following = queue.take(str(replica))
        if following is not None:
            heapq.heappush(events, (now + take_seconds(replica), replica, following))
    return now
