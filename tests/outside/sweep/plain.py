"""`Subject`: a model that runs in plain torch at a small size, with its batch and loss."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cutset.models.task import Data
from cutset.tools.task.lazy_modules import initialise_lazy_modules
from cutset.tools.task.step_results import StepResult, run_plain

from .selection import BATCH, Trial

MAX_OUTPUTS = 4  # that the loss compares with targets, where a model has no loss of its own


class Flat(nn.Module):
    """A model with inputs by position, whose output is the tuple of its floating-point tensors, its own loss last.

    In evaluation it is the first of these alone, which is compared.
    """

    def __init__(self, inner: nn.Module, names: tuple[str, ...], *, loss_inside: bool) -> None:
        super().__init__()
        self.inner, self.names, self.loss_inside = inner, names, loss_inside

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        unnamed = [value for name, value in zip(self.names, inputs, strict=True) if not name]
        named = {name: value for name, value in zip(self.names, inputs, strict=True) if name}
        found = self.inner(*unnamed, **named)
        tensors = tuple(t for t in tree_leaves(found) if isinstance(t, Tensor) and t.is_floating_point())
        if self.loss_inside and tensors and not tensors[0].dim():
            tensors = (*tensors[1:], tensors[0])
        return tensors if self.training else tensors[:1]


def take_last(outputs: tuple[Tensor, ...]) -> Tensor:
    """Return the loss that the model computed."""
    return outputs[-1]


@dataclass(frozen=True)
class SquaredDistances:
    """The sum of the mean squared distances of some outputs from targets. numbers: of these outputs."""

    numbers: tuple[int, ...]

    def __call__(self, outputs: tuple[Tensor, ...], *targets: Tensor) -> Tensor:
        """Return the loss."""
        distances = [(outputs[i] - target).square().mean() for i, target in zip(self.numbers, targets, strict=True)]
        return sum(distances[1:], start=distances[0])


@dataclass(frozen=True)
class Subject:
    """What is cut. says: the trial by which it runs. step: what plain torch computes with it. tries: until it ran."""

    says: str
    build: Callable[[], nn.Module]
    data: Data
    loss: Callable[..., Tensor]
    dtype: torch.dtype
    step: StepResult


class OutsideTheSweepError(Exception):
    """The library itself cannot run a model in any of its trials."""


def find_subject(trials: Iterable[Trial]) -> Subject:
    """Return the first trial that plain torch can compute, in float64 where it can."""
    reasons: dict[str, None] = {}
    for trial in trials:
        for dtype in (torch.float64, torch.float32):
            try:
                return _try(trial, dtype)
            except Exception as error:  # whatever the library raises for sizes that do not suit it
                text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                reasons.setdefault(f"{trial.says}: {text}")
    raise OutsideTheSweepError(" | ".join(list(reasons)[:2] + list(reasons)[-1:]) or "there is no trial")


def _try(trial: Trial, dtype: torch.dtype) -> Subject:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        named = {n: v.to(dtype) if v.is_floating_point() else v for n, v in trial.inputs().items()}
    names, inputs = tuple(named), tuple(named.values())

    def build() -> nn.Module:
        return Flat(trial.model(), names, loss_inside=trial.loss_inside).to(dtype)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().train()
        outputs = model(*inputs)
    if trial.loss_inside and not outputs[-1].dim():
        data, loss = Data(inputs), take_last
    else:
        data, loss = _with_targets(inputs, outputs, dtype)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = initialise_lazy_modules(build(), lambda: data, seed=0, device="cpu")
    step = run_plain(model, loss, data, autocast="")
    if not step.is_finite:
        raise ArithmeticError("not all of its values are finite")
    with torch.no_grad():
        model.eval()(*inputs)
    return Subject(trial.says, build, data, loss, dtype, step)


def _with_targets(inputs: tuple[Tensor, ...], outputs: Any, dtype: torch.dtype) -> tuple[Data, Callable[..., Tensor]]:
    """Return the batch with random targets for the outputs that have samples and a gradient, and their loss."""
    fit = [i for i, o in enumerate(outputs) if o.requires_grad and o.shape[:1] == (BATCH,)][:MAX_OUTPUTS]
    if not fit:
        raise ValueError("no output has a gradient and the samples of the batch along its first dimension")
    with torch.random.fork_rng():
        torch.manual_seed(2)
        targets = tuple(torch.randn(outputs[i].shape, dtype=dtype) for i in fit)
    return Data(inputs, targets), SquaredDistances(tuple(fit))
