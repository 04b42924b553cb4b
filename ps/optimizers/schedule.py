"""Schedules: how the learning rate changes over a run. They are plain data, so they travel in messages and files.

A schedule sees how far the run is, as a fraction of its updates, which shards count in their journals and checkpoints:
so a restart, a replica that joins or a resumed run do not shift it.
"""

import math
from collections.abc import Callable

import msgspec

from ...errors import UsageError
from ..name_and_options import parse_name_and_options

LEAST = 1e-12  # of the rate: an optimizer has none of 0


class Schedule(msgspec.Struct, frozen=True):
    """Says which part of the learning rate an update has."""

    @property
    def name(self) -> str:
        """The name on the command line."""
        return str(self.__struct_config__.tag)

    def factor(self, progress: float) -> float:
        """Return by what the rate is multiplied. progress: updates before this one, as a fraction of all, in [0, 1)."""
        raise NotImplementedError

    def demand_fraction(self, *fields: str, least: float = 0.0) -> None:
        """Raise UsageError E257 unless fields are numbers from `least` to 1."""
        for field in fields:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1:
                facts = f"{field} of schedule {self.name} is {value!r}; it must be a fraction from {least:g} to 1"
                raise UsageError("E257", facts, fix=f"--lr-schedule {self.name}:{field}=0.1, a tenth")


class WarmedUp(Schedule, frozen=True):
    """A schedule that begins with a rise of the rate from 0, in proportion to the updates.

    warmup: fraction of the run that this takes. final: factor at the end of the run.
    """

    warmup: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        self.demand_fraction("warmup", "final")

    def factor(self, progress: float) -> float:
        """Return the factor of the rise, or of the fall that follows it."""
        if progress < self.warmup:
            return progress / self.warmup
        return self.fall((progress - self.warmup) / (1 - self.warmup))

    def fall(self, part: float) -> float:
        """Return the factor after a part of the fall."""
        raise NotImplementedError


class Cosine(WarmedUp, frozen=True, tag="cosine"):
    """A rise to the rate, then half a cosine down to `final` times it (Loshchilov and Hutter, "SGDR", ICLR 2017)."""

    def fall(self, part: float) -> float:
        """Return the factor: equation 5 of the paper, without restarts."""
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * part)) / 2


class Linear(WarmedUp, frozen=True, tag="linear"):
    """A rise to the rate, then a straight fall to `final` times it."""

    def fall(self, part: float) -> float:
        """Return the factor."""
        return 1 - (1 - self.final) * part


class StepDecay(Schedule, frozen=True, tag="step"):
    """The rate is multiplied by `gamma` after every fraction `every` of the run, as by torch's StepLR."""

    every: float = 0.3
    gamma: float = 0.1

    def __post_init__(self) -> None:
        self.demand_fraction("every", least=1e-6)
        self.demand_fraction("gamma")

    def factor(self, progress: float) -> float:
        """Return the factor of the present step."""
        return float(self.gamma ** math.floor(progress / self.every + 1e-9))


class OneCycle(Schedule, frozen=True, tag="one-cycle"):
    """Half a cosine up to the rate, and half a cosine down, as by torch's OneCycleLR (Smith and Topin, 2018).

    rise: fraction of the run that the rise takes. start, final: divide the rate at the beginning, and that at the end.
    """

    rise: float = 0.3
    start: float = 25.0
    final: float = 1e4

    def __post_init__(self) -> None:
        self.demand_fraction("rise", least=1e-6)
        for field in ("start", "final"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < math.inf:
                facts = f"{field} of schedule one-cycle is {value!r}; it must be a number of at least 1"
                raise UsageError("E257", facts, fix=f"--lr-schedule one-cycle:{field}=25")

    def factor(self, progress: float) -> float:
        """Return the factor of the rise or the fall."""
        low, end = 1 / self.start, 1 / self.start / self.final
        if progress < self.rise:
            return _anneal(low, 1.0, progress / self.rise)
        return _anneal(1.0, end, (progress - self.rise) / max(1 - self.rise, 1e-9))


class TabulatedSchedule(Schedule, frozen=True, tag="table"):
    """Factors at points that divide the run evenly, the first at its beginning; those between are on straight lines."""

    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.factors or not all(math.isfinite(factor) and factor >= 0 for factor in self.factors):
            facts = "the factors of schedule table must be finite numbers of at least 0, one or more"
            raise UsageError("E257", facts, fix="cutset.TabulatedSchedule.of(function, steps)")

    @classmethod
    def of(cls, function: Callable[[int], float], steps: int) -> "TabulatedSchedule":
        """Return the schedule of a function of the step, from 0 to `steps` - 1, as torch's LambdaLR has it."""
        if not isinstance(steps, int) or steps < 1:
            facts = f"a schedule of {steps!r} steps; it wants the steps of the run, 1 or more"
            raise UsageError("E257", facts, fix="cutset.TabulatedSchedule.of(function, steps)")
        return cls(tuple(float(function(step)) for step in range(steps)))

    def factor(self, progress: float) -> float:
        """Return the factor at a point, or between two."""
        at = min(progress * len(self.factors), len(self.factors) - 1.0)
        before = math.floor(at + 1e-9)
        after = min(before + 1, len(self.factors) - 1)
        return self.factors[before] + (self.factors[after] - self.factors[before]) * max(0.0, at - before)


class GivenRate(Schedule, frozen=True, tag="given"):
    """The user's own loop sets the rate: what comes as the progress of an update is the factor itself."""

    def factor(self, progress: float) -> float:
        """Return what was given."""
        return progress


AnySchedule = Cosine | Linear | StepDecay | OneCycle | TabulatedSchedule | GivenRate
SCHEDULES: dict[str, type[Cosine | Linear | StepDecay | OneCycle]] = {
    "cosine": Cosine,
    "linear": Linear,
    "one-cycle": OneCycle,
    "step": StepDecay,
}


def parse_schedule(text: str) -> AnySchedule:
    """Return the schedule of a text, "cosine:warmup=0.05"; UsageError if there is none, or an option is wrong."""
    return parse_name_and_options("schedule", text, SCHEDULES, {}, option="lr-schedule")


def _anneal(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2
