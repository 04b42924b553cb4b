"""What a run may do when its values become NaN or infinite: stop, or restart with stale updates counting less."""

from dataclasses import dataclass

from ...errors import UsageError
from ...ps.methods.registry import AnyMethod
from ...ps.optimizers.registry import AnyOptimizer, scale_by_staleness
from ..config.option_values import STOP


@dataclass(frozen=True)
class DivergenceRetry:
    """That a run was restarted. code, reason: of the error that ended it before; optimizer: the name of the new one."""

    code: str
    reason: str
    optimizer: str

    def describe(self) -> str:
        """Return a sentence for the user."""
        return f"It diverged: {self.reason}. It was restarted from the initial weights with optimizer {self.optimizer}."


def check_divergence_policy(policy: str, method: AnyMethod, optimizer: AnyOptimizer, replicas: int, steps: int) -> None:
    """Raise UsageError where a run of so many steps that diverges could not go on as the user asks."""
    if policy == STOP:
        return
    if scale_by_staleness(optimizer) == optimizer:
        facts = (
            f"--on-divergence {policy} divides the rate by the staleness, as optimizer {optimizer.name} does already"
        )
        raise UsageError("E285", facts, fix=f"--on-divergence {STOP}")
    try:
        method.check(scale_by_staleness(optimizer), replicas, steps)
    except UsageError as error:
        facts = f"--on-divergence {policy} divides the rate by the staleness of pushes: {error.facts}"
        raise UsageError("E285", facts, fix=f"--on-divergence {STOP}") from error
