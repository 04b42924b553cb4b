"""What a run does when it diverges: it stops, or it starts again with a rule that makes stale updates count less."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...errors import Diverged, UsageError
from ...ps.methods.registry import AnyMethod
from ...ps.optimizers.registry import AnyRule, Scaled

if TYPE_CHECKING:
    from ..job.prepare import Prepared

STOP, DAMP = "stop", "damp"
Note = Callable[[str], None]


@dataclass(frozen=True)
class Damped:
    """That a run was started again. why: of the error with this code that ended it; rule: the new one."""

    code: str
    why: str
    rule: str

    def in_words(self) -> str:
        """A note."""
        return f"It diverged: {self.why}. It was started again from the first weights with rule {self.rule}."


def demand_possible(wished: str, method: AnyMethod, rule: AnyRule, replicas: int, steps: int) -> None:
    """UsageError where a run of so many steps that diverges could not go on as is wished."""
    if wished not in (STOP, DAMP):
        raise UsageError("E285", f"--on-divergence {wished}; it is {STOP} or {DAMP}", fix=f"--on-divergence {STOP}")
    if wished == STOP:
        return
    if isinstance(rule, Scaled):
        facts = f"--on-divergence {DAMP} divides the rate by the staleness, as rule {rule.name} does already"
        raise UsageError("E285", facts, fix=f"--on-divergence {STOP}")
    try:
        method.check(Scaled(rule), replicas, steps)
    except UsageError as error:
        facts = f"--on-divergence {DAMP} divides the rate by the staleness of pushes: {error.facts}"
        raise UsageError("E285", facts, fix=f"--on-divergence {STOP}") from error


def run_damped(
    job: "Prepared", train: Callable[["Prepared"], dict[str, Any]], note: Note
) -> tuple["Prepared", dict[str, Any], Damped | None]:
    """Train; where that diverges and the user wishes it, once more from the first weights, with the rate over tau.

    The job as it was trained to the end, and what came of it. A rate over tau helps against what delay does: a run that
    diverges all the same needs a smaller rate, and the error says so.
    """
    try:
        return job, train(job), None
    except Diverged as error:
        rule = job.options.rule
        if job.options.on_divergence != DAMP or isinstance(rule, Scaled):
            raise
        calmer = replace(job, options=replace(job.options, rule=Scaled(rule)))
        damped = Damped(error.code, error.facts.partition("\n")[0], calmer.options.rule.name)
    note(damped.in_words())
    try:
        return calmer, train(calmer), damped
    except Diverged as error:
        facts = f"{error.facts}; it had diverged with rule {rule.name} before ({damped.code})"
        raise Diverged(error.code, facts, fix=error.fix) from error
