"""Options of a run that mean nothing together, twice, or for the method: each is refused, naming what to leave out."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import UsageError

if TYPE_CHECKING:
    from ...ps.methods.registry import AnyMethod

# What a placement has settled already.
PLANNING = (
    "machines", "max_machines", "cluster", "objective", "pins", "micro_batches", "candidates", "leaf_modules",
    "autocast",
)  # fmt: skip
# What a batch method has no use for: it looks at all samples in each iteration, by a step size of its own.
STOCHASTIC = ("optimizer", "lr", "epochs", "target", "clip_norm", "on_divergence")


def refuse_conflicts(given: Mapping[str, Any]) -> None:
    """Raise UsageError where options contradict each other. given: by name, those that differ from their defaults."""
    from .named_choices import compression_of, method_of, optimizer_of

    method = method_of(given.get("method", "downpour"))
    if "placement" in given:
        _refuse_any(given, PLANNING, "E228", "has no effect with --placement, which says how the model is cut")
    if "resume" in given and "init" in given:
        raise UsageError("E287", "--resume and --init both say what to begin with", fix="leave one of them out")
    if method.name == "sandblaster":
        facts = "means nothing to method sandblaster, which looks at all samples in each iteration"
        _refuse_any(given, STOCHASTIC, "E296", facts, fix="; see --method sandblaster:iterations=40,step=1")
    else:
        optimizer_of(given.get("optimizer"), given.get("lr"))
    if "keep_checkpoints" in given and "checkpoint_every" not in given:
        _refuse_any(given, ["keep_checkpoints"], "E230", "means nothing without --checkpoint-every")
    if "schedule" in given and "micro_batches" not in given and "placement" not in given:
        _refuse_any(given, ["schedule"], "E230", "means nothing without --micro-batches")
    if "compress" in given:
        compression_of(given["compress"])
        _refuse_compression(method)
    _check_interval(given.get("checkpoint_every", 0), method)


def _refuse_any(given: Mapping[str, Any], names: Collection[str], code: str, why: str, *, fix: str = "") -> None:
    """Raise UsageError for the first of these options that is given."""
    for name in names:
        if name in given:
            flag = "--pin" if name == "pins" else "--" + name.replace("_", "-")
            raise UsageError(code, f"{flag} {why}", fix=f"leave {flag} out{fix}")


def _refuse_compression(method: "AnyMethod") -> None:
    if not method.pushes_gradients:
        facts = f"method {method.name} pushes nothing that could be compressed"
        raise UsageError("E267", facts, fix="leave --compress out, or --method downpour")


def _check_interval(every: int | str, method: "AnyMethod") -> None:
    from .checkpoint_interval import parse_interval

    parse_interval(every, method)
