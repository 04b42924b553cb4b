"""`RunSplit`: a run of some replicas, of some machines each, and how many samples it is predicted to train on a second.

1. A replica's step is that of its plan, simulated on the machines that this replica has.
2. After it come the push and the fetch of all its parameters, unless the method computes meanwhile.
3. Replicas in lock step wait for the slowest, and push at the same time.
4. No card or link carries more than it can: if all replicas together would have it carry more, all are slowed down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..cluster.machines import Cluster, Machine
from ..dataflow.dataflow import Dataflow
from ..dataflow.simulator import simulate
from ..ir.box import volume
from ..planner.plan import PlanningResult
from .exchange import Exchange, Floats, count_push_bytes, occupy_network, time_fetch, time_push

SHARD_COPIES = 2  # of its parameters that a shard holds: the values, and an optimizer's state
COMPUTING, EXCHANGING = "computing", "waiting for pushes and fetches"


@dataclass(frozen=True)
class RunSplit:
    """How a run is divided over a cluster, whose machines are in the order of plans (`order_machines`).

    result: the plan of a replica. step_s: seconds of a step and its exchange, on average over replicas. compute_s: of
    those, the step itself. limit: what holds it up, in words. shortage: the machine without enough memory for its
    workers and shards, in words; "" where all have.
    """

    replicas: int
    result: PlanningResult
    shards: int
    batch: int
    step_s: float
    compute_s: float
    samples_per_s: float
    limit: str
    shortage: str

    @property
    def machines_each(self) -> int:
        """Machines of a replica."""
        return len(self.result.winner.cluster)

    @property
    def machines(self) -> int:
        """Machines of all replicas."""
        return self.replicas * self.machines_each


def predict_split(
    cluster: Cluster, result: PlanningResult, exchange: Exchange, *, replicas: int, shards: int, batch: int
) -> RunSplit:
    """Predict a run of so many replicas, one after the other on the machines of the cluster, and shards in that way."""
    return _Prediction(cluster, result, exchange, replicas, shards).run(batch)


@dataclass(frozen=True)
class _Prediction:
    cluster: Cluster
    result: PlanningResult
    exchange: Exchange
    replicas: int
    shards: int

    def run(self, batch: int) -> RunSplit:
        exchange, counted = self.exchange, self.replicas - self.exchange.backups
        compute = [self._step_seconds(replica) for replica in range(self.replicas)]
        pushed = [self._pushed(replica) for replica in range(self.replicas)]
        if exchange.lock_step:
            compute = [sorted(compute)[counted - 1]] * self.replicas
            pushed_at_once = [sum(pushed[1:], start=pushed[0])] * self.replicas
        else:
            pushed_at_once = pushed
        seconds = [self._add_exchange(*pair) for pair in zip(compute, pushed_at_once, strict=True)]
        if exchange.bounded:
            seconds = [max(seconds)] * self.replicas
        load = np.zeros((len(self.cluster), len(self.cluster)))
        for replica, push in enumerate(pushed):
            load += self._sent_a_step(replica, push) / seconds[replica]
        busiest, carried = max(occupy_network(self.cluster, load).items(), key=lambda item: item[1], default=("", 0.0))
        slowdown = max(1.0, carried)
        rate = sum(1 / s for s in seconds) / slowdown
        step_s = self.replicas / rate
        computing = sum(c / s for c, s in zip(compute, seconds, strict=True)) / slowdown / self.replicas
        limit = COMPUTING if computing >= 0.5 else EXCHANGING
        return RunSplit(
            self.replicas,
            self.result,
            self.shards,
            batch,
            step_s,
            computing * step_s,
            rate * batch * counted / self.replicas,
            busiest if slowdown > 1 else limit,
            self._find_shortage(),
        )

    @cached_property
    def _first_machines(self) -> list[int]:
        """The machines of replica 0, where its plan says."""
        numbers = {machine.name: number for number, machine in enumerate(self.cluster.machines)}
        return [numbers[machine.name] for machine in self.result.winner.cluster.machines]

    def _machines_of(self, replica: int) -> list[int]:
        """The machines of a replica: those that follow on the machines of the one before, as in a run."""
        first = self._first_machines
        return [(machine + replica * len(first)) % len(self.cluster) for machine in first]

    @property
    def _shard_machines(self) -> list[int]:
        return [shard % len(self.cluster) for shard in range(self.shards)]

    @property
    def _dataflow(self) -> Dataflow:
        return self.result.winner.dataflow

    def _step_seconds(self, replica: int) -> float:
        """Return the seconds of a replica's step on its own machines, which may be unlike those it was planned for."""
        own = self.cluster.select(self._machines_of(replica))
        planned = self.result.winner
        if _drop_names(own) == _drop_names(planned.cluster):
            return planned.simulation.step_s
        return simulate(self._dataflow, own, micro_batches=self.result.problem.micro_batches).step_s

    @cached_property
    def _parameter_bytes(self) -> list[int]:
        """Bytes of the parameters of each machine of a replica."""
        graph, out = self._dataflow.graph, [0] * len(self.result.winner.cluster)
        for info in graph.parameters:
            for box, machine in self._dataflow.cut.owners[info.name]:
                out[machine] += volume(box) * info.element_bytes
        return out

    def _pushed(self, replica: int) -> Floats:
        if self.exchange.ring and self.replicas == 1:
            return np.zeros((len(self.cluster), len(self.cluster)))
        return count_push_bytes(
            self._parameter_bytes, self._machines_of(replica), self._shard_machines, len(self.cluster)
        )

    def _add_exchange(self, compute_s: float, pushed: Floats) -> float:
        """Return the seconds of a step with its exchange, on a network that only this replica uses."""
        exchange_s = self.exchange.pushes * time_push(self.cluster, pushed)
        exchange_s += self.exchange.fetches * time_fetch(self.cluster, pushed)
        return max(compute_s, exchange_s) if self.exchange.overlaps else compute_s + exchange_s

    def _sent_a_step(self, replica: int, pushed: Floats) -> Floats:
        """Return the bytes that a replica sends in a step, [from, to]: activations, gradients and the exchange."""
        out = self.exchange.pushes * pushed + self.exchange.fetches * pushed.T
        on, micro_batches = self._machines_of(replica), self.result.problem.micro_batches
        for edges, times in ((self._dataflow.edges, micro_batches), (self._dataflow.shared_edges, 1)):
            for edge in edges:
                out[on[edge.source], on[edge.target]] += times * edge.bytes
                out[on[edge.target], on[edge.source]] += times * edge.gradient_bytes
        return out

    def _find_shortage(self) -> str:
        """Return which machine has too little memory for what it has of replicas and shards."""
        needed = [0.0] * len(self.cluster)
        for replica in range(self.replicas):
            for machine, used in zip(
                self._machines_of(replica), self.result.winner.simulation.memory_bytes, strict=True
            ):
                needed[machine] += used
        for machine in self._shard_machines:
            needed[machine] += SHARD_COPIES * sum(self._parameter_bytes) / self.shards
        for spec, size in zip(self.cluster.machines, needed, strict=True):
            if size > spec.memory_bytes:
                return f"{spec.name} has {spec.memory_bytes:,} bytes, and its workers and shards need {size:,.0f}"
        return ""


def _drop_names(cluster: Cluster) -> tuple[Sequence[Machine], object]:
    """Return what of a cluster matters to a simulation."""
    machines = [replace(machine, name="", address="", python="") for machine in cluster.machines]
    cards = [card.machines for card in cluster.cards]
    return machines, (cluster.bandwidth, cluster.latency_s, cluster.links, cluster.shared, cards)
