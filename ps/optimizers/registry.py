"""All optimizers by name, and what each can be part of."""

from typing import Any

import msgspec

from ...errors import UsageError
from ..name_and_options import parse_name_and_options
from .delay_compensated import AdaDelay, DCAdaptive, DCConstant
from .parameter_groups import Averaged, Grouped
from .rates import OVER_TAU, PlainOptimizer, RatedOptimizer, Scaled, divide_by_staleness
from .standard import SGD, Adagrad, Adam, AdamW, Add, RMSprop, TorchAdagrad

OPTIMIZERS: dict[str, type[PlainOptimizer]] = {
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

AnyOptimizer = RatedOptimizer | Grouped | Averaged


def scale_by_staleness(optimizer: AnyOptimizer) -> AnyOptimizer:
    """Return an optimizer at a rate over max(1, tau), with the same schedule and groups, if it has some."""
    if isinstance(optimizer, Averaged):
        return Averaged(_scale(optimizer.inner), optimizer.decay)
    return _scale(optimizer)


def _scale(optimizer: RatedOptimizer | Grouped) -> RatedOptimizer | Grouped:
    if isinstance(optimizer, Grouped):
        return Grouped([divide_by_staleness(one) for one in optimizer.optimizers], optimizer.ranges)
    return divide_by_staleness(optimizer)


def parse_optimizer(text: str, lr: float) -> PlainOptimizer | Scaled:
    """Return the optimizer named "adam", "adam:beta1=0.8" or "adam/tau:beta1=0.8", say, with learning rate `lr`.

    Raises UsageError if there is none, or an option is wrong.
    """
    name, colon, options = text.partition(":")
    plain = parse_name_and_options("optimizer", name.removesuffix(OVER_TAU) + colon + options, OPTIMIZERS, {"lr": lr})
    return Scaled(plain) if name.endswith(OVER_TAU) else plain


def from_plain(data: Any) -> AnyOptimizer:
    """Return the optimizer of which `data` is the plain form, as `msgspec.to_builtins(optimizer)` makes it."""
    try:
        optimizer: AnyOptimizer = msgspec.convert(data, type=AnyOptimizer)
    except msgspec.ValidationError as error:
        names = ", ".join(sorted(OPTIMIZERS))
        raise UsageError("E254", f"{data!r} is no optimizer: {error}", fix=f"use one of {names}") from error
    return optimizer
