"""Method, optimizer and compression of a config: each is given as text or as an object, and becomes the object."""

from typing import Any

import msgspec
import torch

from ...errors import UsageError
from ...ps.methods.method import Method
from ...ps.methods.registry import AnyMethod, parse_method
from ...ps.optimizers.optimizer import Optimizer
from ...ps.optimizers.rates import RatedOptimizer, Scaled, Scheduled, at_rate
from ...ps.optimizers.registry import parse_optimizer
from ...ps.optimizers.schedule import AnySchedule, Schedule, parse_schedule
from ...ps.slices.compression import AnyCompression, Compression, parse_compression
from .option import MAX_WHOLE
from .option_values import DEFAULT_OPTIMIZER

MAX_LR = torch.finfo(torch.float32).max


def method_of(choice: str | AnyMethod) -> AnyMethod:
    """Return the method of a config; UsageError if there is no such method."""
    if not isinstance(choice, str):
        _expect(choice, Method, "method", "downpour")
    method = parse_method(choice) if isinstance(choice, str) else choice
    _refuse_huge(method, "method")
    return method


def optimizer_of(
    choice: str | RatedOptimizer | None,
    lr: float | None,
    schedule: str | AnySchedule | None = None,
    *,
    times: float = 1.0,
) -> RatedOptimizer:
    """Return the optimizer of a config at the rate `lr`, by default `times` its own, or at one that follows a schedule.

    UsageError if there is no such optimizer, if it sets a learning rate itself and `lr` is given too, or if the rate is
    too large for float32.
    """
    own_rate = _names_rate(choice) if isinstance(choice, str) else choice is not None
    if own_rate and lr is not None:
        text = choice if isinstance(choice, str) else repr(choice)
        raise UsageError(
            "E229", f"--lr {lr:g} beside --optimizer {text}, which sets a rate itself", fix="leave --lr out"
        )
    optimizer: RatedOptimizer
    if choice is None or isinstance(choice, str):
        optimizer = parse_optimizer(choice or DEFAULT_OPTIMIZER, 1.0 if lr is None else lr)
        if lr is None and not own_rate:
            optimizer = at_rate(optimizer, optimizer.default_lr * times)
    else:
        _expect(choice, Optimizer, "optimizer", DEFAULT_OPTIMIZER)
        optimizer = choice
    inner = optimizer.inner if isinstance(optimizer, Scheduled) else optimizer
    _refuse_huge(inner.inner if isinstance(inner, Scaled) else inner, "optimizer")
    if optimizer.lr > MAX_LR:
        raise UsageError(
            "E226", f"--lr {optimizer.lr:g} is too large; the largest float32 is {MAX_LR:.3g}", fix="--lr 0.05"
        )
    return optimizer if schedule is None else _with_schedule(optimizer, schedule)


def _with_schedule(optimizer: RatedOptimizer, choice: str | AnySchedule) -> RatedOptimizer:
    if isinstance(optimizer, Scheduled):
        facts = "lr_schedule beside an optimizer that has a schedule of its own"
        raise UsageError("E229", facts, fix="leave one of both out")
    if callable(choice) and not isinstance(choice, type):
        facts = f"lr_schedule is a function of the step, {getattr(choice, '__name__', choice)}"
        fix = "lr_schedule=cutset.TabulatedSchedule.of(function, steps), where steps are those of the run"
        raise UsageError("E252", facts, fix=fix)
    if not isinstance(choice, str):
        _expect(choice, Schedule, "lr_schedule", "cosine")
    return Scheduled(optimizer, parse_schedule(choice) if isinstance(choice, str) else choice)


def compression_of(choice: str | AnyCompression | None) -> AnyCompression | None:
    """Return the compression of a config, or None; UsageError if there is no such compression."""
    if choice is None:
        return None
    if not isinstance(choice, str):
        _expect(choice, Compression, "compress", "int8")
    compression = parse_compression(choice) if isinstance(choice, str) else choice
    _refuse_huge(compression, "compress")
    return compression


def _names_rate(text: str) -> bool:
    """Whether the text of an optimizer sets a learning rate, as in "adam:lr=0.1"."""
    options = text.partition(":")[2].split(",")
    return any(option.partition("=")[0] == "lr" for option in options)


def _refuse_huge(chosen: msgspec.Struct, option: str) -> None:
    """Raise UsageError for a whole number that no message takes; the object itself checks what makes sense."""
    for name, value in msgspec.structs.asdict(chosen).items():
        if isinstance(value, int) and abs(value) > MAX_WHOLE:
            kind = chosen.__struct_config__.tag
            facts = f"{name} of {kind} is {value}; it must be at most {MAX_WHOLE}"
            raise UsageError("E254", facts, fix=f"--{option} {kind}:{name}={MAX_WHOLE}")


def _expect(choice: Any, kind: type[Any], what: str, such: str) -> None:
    """Raise UsageError unless `choice` is of a type. what: the name of its option; such: a text that it could be."""
    if not isinstance(choice, kind):
        kind = choice if isinstance(choice, type) else type(choice)
        given = f"{'the class' if isinstance(choice, type) else 'a'} {kind.__module__}.{kind.__qualname__}"
        facts = f"{what} is {given}; it must be a text such as {such!r}, or the object that such a text describes"
        raise UsageError("E252", facts, fix=f"{what}={such!r}")
