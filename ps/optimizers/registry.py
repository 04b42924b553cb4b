"""All rules by name, and `Scaled`: any of them at a rate that falls with staleness."""

from typing import Any, ClassVar

import msgspec
from torch import Tensor

from ...errors import UsageError
from .delay_compensated import AdaDelay, DCAdaptive, DCConstant
from .standard import SGD, Adagrad, Adam, AdamW, Add, RMSprop, TorchAdagrad
from .optimizer import Rule, Update
from ..name_and_options import named

OVER_TAU = "/tau"  # what follows the name of a rule whose rate is divided by the staleness

PlainRule = SGD | Add | Adagrad | TorchAdagrad | RMSprop | Adam | AdamW | AdaDelay | DCConstant | DCAdaptive
RULES: dict[str, type[PlainRule]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "adagrad-torch": TorchAdagrad,
    "rmsprop": RMSprop,
    "adam": Adam,
    "adamw": AdamW,
    "adadelay": AdaDelay,
    "dc-asgd-a": DCAdaptive,
    "dc-asgd-c": DCConstant,
    "add": Add,
}


class Scaled(Rule, frozen=True, tag="scaled"):
    """A rule at the rate lr / max(1, tau): the staler an update, the less it counts. Asked for as "adagrad/tau"."""

    inner: PlainRule
    delayed: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """As it is asked for."""
        return self.inner.name + OVER_TAU

    @property
    def lr(self) -> float:
        """That of a fresh update."""
        return self.inner.lr

    @property
    def remembers(self) -> bool:
        """As the inner rule."""
        return self.inner.remembers

    def rate(self, update: Update) -> float:
        """That of the inner rule over tau."""
        return self._at(update).rate(update)

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """That of the inner rule."""
        return self.inner.state(value)

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Apply the inner rule at the lower rate."""
        self._at(update).apply(value, gradient, state, update)

    def fetched(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """Tell the inner rule."""
        self.inner.fetched(value, state, replica)

    def _at(self, update: Update) -> PlainRule:
        return msgspec.structs.replace(self.inner, lr=self.inner.lr / max(1, update.tau))


AnyRule = PlainRule | Scaled


def rule(text: str, lr: float) -> AnyRule:
    """The rule asked for as "adam", "adam:beta1=0.8" or "adam/tau:beta1=0.8" with learning rate `lr`.

    UsageError where there is none.
    """
    name, colon, options = text.partition(":")
    plain = named("rule", name.removesuffix(OVER_TAU) + colon + options, RULES, {"lr": lr})
    return Scaled(plain) if name.endswith(OVER_TAU) else plain


def from_plain(data: Any) -> AnyRule:
    """The rule of which `data` is the plain form (`msgspec.to_builtins(rule)`)."""
    try:
        found: AnyRule = msgspec.convert(data, type=AnyRule)
    except msgspec.ValidationError as error:
        names = ", ".join(sorted(RULES))
        raise UsageError("E254", f"{data!r} is no rule: {error}", fix=f"use one of {names}") from error
    return found
