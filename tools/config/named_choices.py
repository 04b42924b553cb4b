"""Method, optimizer and compression of a run: the text or the object that a config has becomes the object."""

from typing import Any

import torch

from ...errors import UsageError
from ...ps.methods.method import Method
from ...ps.methods.registry import AnyMethod, parse_method
from ...ps.optimizers.optimizer import Optimizer
from ...ps.optimizers.registry import AnyOptimizer, parse_optimizer
from ...ps.slices.compression import AnyCompression, Compression, parse_compression
from .option_values import DEFAULT_LR, DEFAULT_OPTIMIZER

MAX_LR = torch.finfo(torch.float32).max


def method_of(choice: str | AnyMethod) -> AnyMethod:
    """Return the method of a config; UsageError where there is none such."""
    if isinstance(choice, str):
        return parse_method(choice, {})
    _expect(choice, Method, "method", "downpour")
    return choice


def optimizer_of(choice: str | AnyOptimizer | None, lr: float | None) -> AnyOptimizer:
    """Return the optimizer of a config at the learning rate `lr`.

    UsageError where there is none such, where it has a rate of its own and `lr` is given too, and where the rate is not
    a float32.
    """
    own_rate = _names_rate(choice) if isinstance(choice, str) else choice is not None
    if own_rate and lr is not None:
        shown = choice if isinstance(choice, str) else repr(choice)
        raise UsageError("E229", f"--lr {lr:g} beside --optimizer {shown}, which has a rate", fix="leave --lr out")
    if choice is None or isinstance(choice, str):
        optimizer = parse_optimizer(choice or DEFAULT_OPTIMIZER, DEFAULT_LR if lr is None else lr)
    else:
        _expect(choice, Optimizer, "optimizer", DEFAULT_OPTIMIZER)
        optimizer = choice
    if optimizer.lr > MAX_LR:
        raise UsageError("E226", f"--lr {optimizer.lr:g}; float32 ends at {MAX_LR:.3g}", fix="--lr 0.05")
    return optimizer


def compression_of(choice: str | AnyCompression | None) -> AnyCompression | None:
    """Return the compression of a config, if there is one; UsageError where there is none such."""
    if isinstance(choice, str):
        return parse_compression(choice)
    if choice is not None:
        _expect(choice, Compression, "compress", "int8")
    return choice


def _names_rate(text: str) -> bool:
    """Return whether an optimizer is asked for by a text with a learning rate: "adam:lr=0.1"."""
    options = text.partition(":")[2].split(",")
    return any(option.partition("=")[0] == "lr" for option in options)


def _expect(choice: Any, kind: type[Any], what: str, such: str) -> None:
    """Raise UsageError unless an object is of a kind, as type checkers may not have looked."""
    if not isinstance(choice, kind):
        facts = f"{what} is {choice!r}; it must be text such as {such!r}, or an object of one"
        raise UsageError("E252", facts, fix=f"--{what} {such}")
