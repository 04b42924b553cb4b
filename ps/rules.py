"""All rules by name."""

from typing import Any

import msgspec

from ..partition.errors import UsageError
from .gradient_rules import SGD, Adagrad
from .spec import named

AnyRule = SGD | Adagrad
RULES: dict[str, type[AnyRule]] = {"sgd": SGD, "adagrad": Adagrad}


def rule(text: str, lr: float) -> AnyRule:
    """The rule asked for as "adam" or "adam:beta1=0.8" with learning rate `lr`; UsageError where there is none."""
    return named("rule", text, RULES, {"lr": lr})


def from_plain(data: Any) -> AnyRule:
    """The rule of which `data` is the plain form (`msgspec.to_builtins(rule)`)."""
    try:
        found: AnyRule = msgspec.convert(data, type=AnyRule)
    except msgspec.ValidationError as error:
        names = ", ".join(sorted(RULES))
        raise UsageError("E254", f"{data!r} is no rule: {error}", fix=f"use one of {names}") from error
    return found
