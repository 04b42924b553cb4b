"""`SimulatedMachines`: how fast machines compute and send, and `StepDurations`: what one replica draws of that."""

import math
import random

import msgspec

from ...errors import UsageError
from ...runtime.channel.message import Message


class SimulatedMachines(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is assumed of the machines.

    step_s: that a replica computes one batch, on average. spread: of the logarithm of a step's seconds, from step to
    step. machine_spread: the same from machine to machine, each of which keeps its pace. stragglers: the first replicas
    that are slower than the others, by `slowdown`. bandwidth: bytes/s of a replica's card, each way; shard_bandwidth:
    of a shard's. latency_s: that a message travels. message_s: that a message costs a shard, and service_bandwidth
    bytes/s that it handles besides. recorded_s: by replica, what its steps took elsewhere, one after the other; where
    that is given nothing is drawn.
    """

    step_s: float = 1.0
    spread: float = 0.0
    machine_spread: float = 0.0
    stragglers: int = 0
    slowdown: float = 1.0
    bandwidth: float = math.inf
    shard_bandwidth: float = math.inf
    latency_s: float = 0.0
    message_s: float = 0.0
    service_bandwidth: float = math.inf
    recorded_s: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        for field, least in (("step_s", 0.0), ("bandwidth", 0.0), ("shard_bandwidth", 0.0), ("service_bandwidth", 0.0)):
            if not getattr(self, field) > least:
                raise UsageError(
                    "E241", f"simulated machines with {field} {getattr(self, field)}", fix="a number above 0"
                )
        for field in ("spread", "machine_spread", "latency_s", "message_s", "stragglers"):
            if not 0 <= getattr(self, field) < math.inf:
                raise UsageError("E241", f"simulated machines with {field} {getattr(self, field)}", fix="0 or more")

    def service_s(self, message: Message) -> float:
        """Return the seconds that a message keeps a shard busy."""
        return self.message_s + message.bytes / self.service_bandwidth


class StepDurations:
    """Draws the seconds of a replica's steps: log-normal, with the mean that is asked for.

    Each replica has a generator of its own, so what it draws depends on the seed and its number alone.
    """

    def __init__(self, machines: SimulatedMachines, replica: int, seed: int) -> None:
        self._recorded = iter(machines.recorded_s[replica]) if machines.recorded_s else None
        self._chance = random.Random(f"step times {seed} {replica}")
        self._spread = machines.spread
        pace = _draw_log_normal(self._chance, machines.machine_spread)
        self._mean_s = machines.step_s * pace * (machines.slowdown if replica < machines.stragglers else 1.0)

    def draw(self, steps: float = 1.0) -> float:
        """Return the seconds of a step, or of a part of one."""
        recorded_s = None if self._recorded is None else next(self._recorded, None)
        if recorded_s is not None:
            return recorded_s
        return self._mean_s * steps * _draw_log_normal(self._chance, self._spread)


def _draw_log_normal(chance: random.Random, spread: float) -> float:
    """Return a number with mean 1 whose logarithm has this standard deviation."""
    return math.exp(chance.gauss(-spread * spread / 2, spread)) if spread else 1.0
