"""What is measured on test samples besides loss and accuracy: functions of a batch, or objects that collect batches.

A function is called as `metric(outputs, *targets)` and gives the mean over the batch; batches count by their samples.
An object has `update(outputs, *targets)`, `compute()` and `reset()`, as those of torchmetrics.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.nn import functional


@runtime_checkable
class CollectingMetric(Protocol):
    """A metric that is no mean over batches."""

    def update(self, outputs: Any, *targets: Tensor) -> object:
        """Take in a batch."""

    def compute(self) -> Any:
        """Return the value for all batches since the last reset: a number, or a tensor of one element."""

    def reset(self) -> object:
        """Forget all batches."""


Metric = Callable[..., Any] | CollectingMetric


class Perplexity:
    """e to the power of the mean cross entropy of each target, as language models are measured.

    Outputs are logits [..., classes], targets class numbers [...]; targets that equal `ignore_index` do not count.
    logits: finds them in what the model gives, if that is no tensor: `lambda output: output.logits`.
    """

    def __init__(self, *, ignore_index: int = -100, logits: Callable[[Any], Tensor] = lambda output: output) -> None:
        self._ignore_index, self._logits = ignore_index, logits
        self.reset()

    def update(self, outputs: Any, *targets: Tensor) -> None:
        """Take in a batch."""
        logits, (target, *_) = self._logits(outputs), targets
        flat = logits.reshape(-1, logits.shape[-1]).float()
        total = functional.cross_entropy(flat, target.reshape(-1), ignore_index=self._ignore_index, reduction="sum")
        self._sum += float(total)
        self._count += int((target != self._ignore_index).sum())

    def compute(self) -> float:
        """Return the perplexity; infinite where it is more than a float can be."""
        mean = self._sum / max(1, self._count)
        return math.exp(mean) if mean < 700.0 else math.inf

    def reset(self) -> None:
        """Forget all batches."""
        self._sum, self._count = 0.0, 0

    def __repr__(self) -> str:
        return f"Perplexity({self._count} targets)"
