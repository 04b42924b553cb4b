"""What a shard and a replica of a run are made of, whichever clock drives them: the virtual one or the real one."""

import math
from collections.abc import Callable

from ...models.sample_stream import SampleStream
from ...ps.client.client import Client
from ...ps.methods.training_loop import TrainingLoop
from ...ps.server.shard import Shard
from ...ps.slices.slicing import ParameterSlice, slice_parameters, slices_of_shard
from ...runtime.channel.mailbox import Mailbox
from ..samples.dataset_samples import Samples
from .machines import StepDurations
from .replica import NumberedBatch, SharedModel, VirtualReplica
from .results import SimulationSpec

Assign = Callable[[int], NumberedBatch | None]
"""Return the batch of a replica's step, None after the last one."""


def take_turns(spec: SimulationSpec, number: int, samples: Samples, stream: SampleStream) -> Assign:
    """Return the batches of a replica, where each computes every n-th."""

    def assign(step: int) -> NumberedBatch | None:
        return NumberedBatch(samples, stream, number + step * spec.replicas) if step < spec.steps else None

    return assign


def divide_parameters(spec: SimulationSpec, size: int) -> list[ParameterSlice]:
    """Return the slices of `size` parameters: one for each shard."""
    whole = spec.read_method().needs_one_shard
    return slice_parameters([size], spec.shards, max_elements=size + 16, whole=whole)


def make_shard(spec: SimulationSpec, slices: list[ParameterSlice], index: int) -> Shard:
    """Return a shard."""
    serving = spec.read_method().configure_shards(spec.read_optimizer(), spec.replicas)
    return Shard(index, slices_of_shard(slices, index), serving)


class ReplicaRole:
    """A replica: its parameters, and its client of the shards.

    clock, sleep: of the world that it lives in. The real one takes no less than the computation does.
    """

    def __init__(
        self,
        spec: SimulationSpec,
        model: SharedModel,
        number: int,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], object],
        early: bool,
    ) -> None:
        """For `early` see `VirtualReplica`."""
        self.method, self.optimizer = spec.read_method(), spec.read_optimizer()
        self._spec, self._clock = spec, clock
        times = StepDurations(spec.machines, number, spec.seed)
        self.replica = VirtualReplica(model, number, times.draw, clock=clock, sleep=sleep, early=early)
        self.client: Client | None = None

    def train(
        self,
        mailbox: Mailbox,
        slices: list[ParameterSlice],
        assign: Assign,
        *,
        on_step: Callable[[], None],
        retransmit_s: float = math.inf,
        ready: Callable[[], object] = lambda: None,
    ) -> None:
        """Train by the method until there is no batch. ready: is called before the first step."""
        spec, replica = self._spec, self.replica
        client = Client(
            mailbox,
            slices,
            replica.values,
            local_rate=self.method.local_rate(self.optimizer),
            replica=replica.number,
            initial=True,
            retransmit_s=retransmit_s,
            clock=self._clock,
        )
        self.client, replica.before_step = client, client.collect_acknowledgements
        if not replica.number:
            client.put()
        ready()
        loop: TrainingLoop[NumberedBatch] = TrainingLoop(
            replica,
            client,
            self.optimizer,
            assign,
            replicas=spec.replicas,
            total_steps=spec.steps,
            report=lambda step, loss, count: on_step(),
            gradient=replica.gradient,
        )
        loop.run(self.method.train(loop))

    def waited_s(self) -> float:
        """Return for how long it has waited for shards."""
        counts = {} if self.client is None else self.client.statistics()
        return float(counts.get("fetch_blocked_s", 0.0) + counts.get("push_blocked_s", 0.0))
