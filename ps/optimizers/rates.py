"""`Scaled` and `Scheduled`: any plain optimizer at a rate that falls with staleness, or changes over a run."""

from typing import ClassVar

import msgspec
from torch import Tensor

from .delay_compensated import AdaDelay, DCAdaptive, DCConstant
from .optimizer import Optimizer, Update
from .schedule import LEAST, AnySchedule
from .standard import SGD, Adagrad, Adam, AdamW, Add, RMSprop, TorchAdagrad

OVER_TAU = "/tau"  # suffix of the name of an optimizer whose rate is divided by the staleness

PlainOptimizer = SGD | Add | Adagrad | TorchAdagrad | RMSprop | Adam | AdamW | AdaDelay | DCConstant | DCAdaptive


class Scaled(Optimizer, frozen=True, tag="scaled"):
    """An optimizer at the rate lr / max(1, tau): the staler an update, the less it counts. Named "adagrad/tau", say.

    Zhang et al., "Staleness-Aware Async-SGD for Distributed Deep Learning", IJCAI 2016.
    """

    inner: PlainOptimizer
    compensates_delay: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name on the command line."""
        return self.inner.name + OVER_TAU

    @property
    def lr(self) -> float:
        """The learning rate of a fresh update."""
        return self.inner.lr

    @property
    def default_lr(self) -> float:
        """That of the inner optimizer."""
        return self.inner.default_lr

    @property
    def needs_every_fetch(self) -> bool:
        """Whether the inner optimizer needs it."""
        return self.inner.needs_every_fetch

    def rate(self, update: Update) -> float:
        """Return the rate of the inner optimizer over max(1, tau)."""
        return self._at(update).rate(update)

    def init_state(self, value: Tensor) -> dict[str, Tensor]:
        """Return the state of the inner optimizer."""
        return self.inner.init_state(value)

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Apply the inner optimizer at the lower rate."""
        self._at(update).apply(value, gradient, state, update)

    def on_fetch(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """Pass the fetch on to the inner optimizer."""
        self.inner.on_fetch(value, state, replica)

    def _at(self, update: Update) -> PlainOptimizer:
        return msgspec.structs.replace(self.inner, lr=self.inner.lr / max(1, update.tau))


class Scheduled(Optimizer, frozen=True, tag="scheduled"):
    """An optimizer whose learning rate changes over the run."""

    inner: PlainOptimizer | Scaled
    schedule: AnySchedule

    @property
    def compensates_delay(self) -> bool:  # type: ignore[override]
        """Whether the inner optimizer does."""
        return self.inner.compensates_delay

    @property
    def name(self) -> str:
        """The name on the command line, which says what state there is."""
        return self.inner.name

    @property
    def lr(self) -> float:
        """The learning rate that the schedule divides."""
        return self.inner.lr

    @property
    def needs_every_fetch(self) -> bool:
        """Whether the inner optimizer needs it."""
        return self.inner.needs_every_fetch

    def rate(self, update: Update) -> float:
        """Return the rate of the inner optimizer at this point of the run."""
        return self._at(update).rate(update)

    def init_state(self, value: Tensor) -> dict[str, Tensor]:
        """Return the state of the inner optimizer."""
        return self.inner.init_state(value)

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Apply the inner optimizer at its rate of now."""
        self._at(update).apply(value, gradient, state, update)

    def on_fetch(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """Pass the fetch on to the inner optimizer."""
        self.inner.on_fetch(value, state, replica)

    def _at(self, update: Update) -> "PlainOptimizer | Scaled":
        return at_rate(self.inner, self.lr * max(LEAST, self.schedule.factor(update.progress)))


RatedOptimizer = PlainOptimizer | Scaled | Scheduled


def at_rate(optimizer: PlainOptimizer | Scaled, lr: float) -> PlainOptimizer | Scaled:
    """Return an optimizer at another rate."""
    if isinstance(optimizer, Scaled):
        return Scaled(msgspec.structs.replace(optimizer.inner, lr=lr))
    return msgspec.structs.replace(optimizer, lr=lr)


def divide_by_staleness(optimizer: RatedOptimizer) -> RatedOptimizer:
    """Return an optimizer at a rate over max(1, tau), with the same schedule, if it has one."""
    if isinstance(optimizer, Scheduled):
        inner = optimizer.inner
        return optimizer if isinstance(inner, Scaled) else Scheduled(Scaled(inner), optimizer.schedule)
    return optimizer if isinstance(optimizer, Scaled) else Scaled(optimizer)
