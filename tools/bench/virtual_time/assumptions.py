"""`Assumptions`: the machines that figures are simulated on, and whether this machine has the memory for that."""

import os
from dataclasses import dataclass

from ....errors import UsageError
from ....models.task import Task
from ...units import format_bytes, format_seconds
from ...virtual_time.machines import SimulatedMachines
from ...virtual_time.replica import SharedModel
from ...virtual_time.results import SimulationSpec

REAL = "Real: data, gradients, parameters, methods, clients and shards' updates."
SIMULATED = "Simulated: the time of steps, of messages and of shards."
REPLICAS_PER_SHARD = 8
BASE_BYTES = 700 << 20  # of a process with torch and the samples
COPIES = {"downpour": 1.3, "ssp": 2.0, "sync": 2.0, "hogwild": 2.0, "averaging": 4.0, "easgd": 4.0, "diloco": 6.0}


@dataclass(frozen=True)
class Assumptions:
    """What is assumed of machines.

    step_s: that a replica computes one batch. spread, machine_spread: of the logarithm of that, from step to step and
    from machine to machine. bandwidth: bytes/s of a card, each way. latency_s: that a message travels. message_s: that
    it costs a shard. service_bandwidth: bytes/s that a shard handles besides. stragglers: the part of the replicas that
    is slower, by `slowdown`.
    """

    step_s: float = 1.0
    spread: float = 0.3
    machine_spread: float = 0.1
    bandwidth: float = 110e6
    latency_s: float = 2e-4
    message_s: float = 7e-4
    service_bandwidth: float = 1e9
    stragglers: float = 0.0
    slowdown: float = 1.0

    def for_replicas(self, replicas: int) -> SimulatedMachines:
        """Return the machines of a run: one shard for every eight replicas, simulated as one that is so much faster."""
        shards = max(1, replicas // REPLICAS_PER_SHARD)
        return SimulatedMachines(
            step_s=self.step_s,
            spread=self.spread,
            machine_spread=self.machine_spread,
            stragglers=round(self.stragglers * replicas),
            slowdown=self.slowdown,
            bandwidth=self.bandwidth,
            shard_bandwidth=self.bandwidth * shards,
            latency_s=self.latency_s,
            message_s=self.message_s / shards,
            service_bandwidth=self.service_bandwidth * shards,
        )

    def describe(self, *, parameters: int, batch: int) -> list[str]:
        """Return sentences on what is real and what is assumed."""
        slow = f" {self.stragglers:.0%} of the machines are {self.slowdown:g} times slower." if self.stragglers else ""
        return [
            f"{REAL} {SIMULATED}",
            f"Assumed: a batch of {batch} takes a machine {format_seconds(self.step_s)}, log-normal, with a spread of"
            f" {self.spread:g} between steps and {self.machine_spread:g} between machines;{slow}",
            f"{format_bytes(parameters)} of parameters over cards of {self.bandwidth / 1e6:g} MB/s,"
            f" {format_seconds(self.latency_s)} a message, a shard for every {REPLICAS_PER_SHARD} replicas.",
        ]

    def check_task_memory(self, spec: SimulationSpec, task: Task) -> int:
        """Check as `check_memory`; return the bytes of the parameters of a task."""
        parameters = SharedModel(task, seed=0).initial.nbytes
        self.check_memory(spec, parameters)
        return parameters

    def check_memory(self, spec: SimulationSpec, parameters: int) -> None:
        """Raise UsageError where a run of so many bytes of parameters needs more memory than this machine has."""
        need = estimate_memory(spec, parameters)
        have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if need > have:
            most = max(1, int(spec.replicas * (have - BASE_BYTES) / (need - BASE_BYTES)))
            facts = f"{spec.replicas} replicas need about {format_bytes(need)}; this machine has {format_bytes(have)}"
            raise UsageError("E241", facts, fix=f"at most {most} replicas")


def estimate_memory(spec: SimulationSpec, parameters: int) -> int:
    """Return the bytes that a simulation needs, about."""
    copies = COPIES[spec.read_method().name]
    return int(BASE_BYTES + (copies * spec.replicas + 12) * parameters)
