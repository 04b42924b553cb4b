"""`VirtualRun`: training in virtual time. Method, clients, shards and gradients are real; machines are simulated.

A replica is a task that runs `Method.train`; between the parameters and the gradient of a step it waits for as long as
the simulated machine would compute. Shards are queues. Nothing is restarted: a replica that is lost stays lost.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ...errors import CutsetError, Diverged
from ...ps.server.shard import Shard
from ...ps.slices.slicing import count_shards
from ...ps.slices.staleness import merge_histograms
from ...runtime.channel.mailbox import Mailbox
from ..samples.sample_loader import make_stream
from .network import VirtualChannel, VirtualNetwork
from .replica import NumberedBatch, SharedModel
from .results import Point, SimulatedRun, SimulationSpec
from .roles import Assign, ReplicaRole, divide_parameters, make_shard, take_turns
from .samples import SplitSamples
from .shard_queue import ShardQueue
from .world import VirtualTask, World

FOREVER_S = math.inf


class VirtualRun:
    """One run.

    on_point: is called with each point of the learning curve; on_batch: with the number of batches computed so far.
    """

    def __init__(
        self,
        spec: SimulationSpec,
        model: SharedModel,
        samples: SplitSamples,
        *,
        on_point: Callable[[Point], object] = lambda point: None,
        on_batch: Callable[[int], object] = lambda batches: None,
    ) -> None:
        self.spec, self.world = spec, World(spec.seed)
        self._model, self._samples, self._on_point, self._on_batch = model, samples, on_point, on_batch
        spec.check()
        self._method = spec.read_method()
        self._network = VirtualNetwork(self.world, spec.machines.latency_s)
        self._slices = divide_parameters(spec, model.initial.numel())
        self._shards: list[Shard] = []
        self._queues: list[ShardQueue] = []
        self._stream = make_stream(samples.train, batch=spec.batch, seed=spec.seed)
        self._leased = self._computed = 0  # batches of all replicas together
        self._points: list[Point] = []
        self._roles: list[ReplicaRole] = []
        self._tasks: list[VirtualTask] = []
        self._is_over = False

    def run(self) -> SimulatedRun:
        """Train until all batches are computed, the target is reached, the time is over, or it diverges."""
        reason = ""
        self._start()
        try:
            self._record()
            self.world.run(self._has_ended)
            if not self._is_over:
                self._record()
        except Diverged as error:
            reason = error.facts
        finally:
            seconds = self.world.now
            result = self._summarize(seconds, reason)
            self.world.end()
            self._roles.clear()
            self._tasks.clear()
        return result

    def _start(self) -> None:
        spec, machines = self.spec, self.spec.machines
        for index in range(count_shards(self._slices)):
            shard = make_shard(spec, self._slices, index)
            queue = ShardQueue(
                f"shard-{index}",
                shard,
                self._network,
                bandwidth=machines.shard_bandwidth,
                service_s=machines.service_s,
            )
            self._shards.append(shard)
            self._queues.append(queue)
        for number in range(spec.replicas):
            task = VirtualTask(self.world, f"worker-{number}.0", partial(self._train, number))
            task.begin()
            self._tasks.append(task)
        for seconds, number in spec.losses:
            self.world.at(seconds, partial(self._lose, number))
        if spec.seconds < math.inf:
            self.world.at(spec.seconds, self._stop)

    def _train(self, number: int) -> None:
        """Be the worker of a replica."""
        world, early = self.world, not self._method.pushes_gradients
        role = ReplicaRole(self.spec, self._model, number, clock=world.clock, sleep=world.sleep, early=early)
        self._roles.append(role)
        channel = VirtualChannel(
            f"worker-{number}.0",
            self._network,
            bandwidth=self.spec.machines.bandwidth,
            copies=lambda message: message.kind != "push" or role.replica.gradient.keeps,
        )
        mailbox = Mailbox(channel, timeout_s=FOREVER_S)
        role.train(mailbox, self._slices, self._assign_batches(number), on_step=self._finish_step)
        channel.close()

    def _assign_batches(self, number: int) -> Assign:
        """Return which batch a replica computes at a step: the next of all, or in lock step its own."""
        spec = self.spec
        if spec.takes_turns:
            return take_turns(spec, number, self._samples.train, self._stream)

        def lease(step: int) -> NumberedBatch | None:
            if self._leased >= spec.batches:
                return None
            self._leased += 1
            return NumberedBatch(self._samples.train, self._stream, self._leased - 1)

        return lease

    def _finish_step(self) -> None:
        self._computed += 1
        self._on_batch(self._computed)
        if self._computed >= self._next_point():
            self._record()

    def _next_point(self) -> float:
        """Return after how many batches the curve has its next point; the first ones lie closer together."""
        return self.spec.batches * (len(self._points) / self.spec.points) ** 2

    def _record(self) -> None:
        """Measure how good the parameters on the shards are now, which takes no virtual time."""
        values, size = self.read_values(), max(self.spec.batch, 500)
        test = self._model.score(values, self._samples.test, size)
        train = self._model.score(values, self._samples.seen, size)
        point = Point(
            self.world.now, self._computed * self.spec.batch, test.accuracy, train.accuracy, test.loss, train.loss
        )
        self._points.append(point)
        self._on_point(point)
        if self.spec.target is not None and (point.test_accuracy or 0.0) >= self.spec.target:
            self._stop()

    def read_values(self) -> Tensor:
        """Return the parameters [n] that the shards have, or those that training begins with while they have none."""
        try:
            states = [state for shard in self._shards for state in shard.slice_states()]
        except CutsetError:
            return self._model.initial
        return torch.cat([state.value for state in sorted(states, key=lambda one: one.slice.start)])

    def _lose(self, number: int) -> None:
        """Lose a replica."""
        self._tasks[number].dead = True
        self._network.disconnect(f"worker-{number}.0")

    def _stop(self) -> None:
        self._is_over = True

    def _has_ended(self) -> bool:
        return self._is_over or all(task.has_ended for task in self._tasks)

    def _summarize(self, seconds: float, reason: str) -> SimulatedRun:
        slices = [part for shard in self._shards for part in shard.statistics()["slices"]]
        replica_s = seconds * len(self._roles)
        return SimulatedRun(
            points=self._points,
            seconds=seconds,
            failure=reason,
            steps=[len(role.replica.step_s) for role in self._roles],
            updates=min((part["version"] or 0 for part in slices), default=0),
            staleness=merge_histograms(counts for part in slices for counts in part["staleness"].values()),
            bytes_sent=self._network.bytes_sent,
            waiting=sum(role.waited_s() for role in self._roles) / replica_s if replica_s else 0.0,
            shards_busy=max((queue.busy_s for queue in self._queues), default=0.0) / seconds if seconds else 0.0,
        )
