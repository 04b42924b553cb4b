"""Refuses options of a run that contradict each other or have no effect, and names the one to leave out."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from .parameter_group import Group

if TYPE_CHECKING:
    from ...ps.methods.registry import AnyMethod

# What a placement fixes already.
PLANNING = (
    "machines", "max_machines", "cluster", "objective", "pins", "micro_batches", "candidates", "leaf_modules",
    "autocast",
)  # fmt: skip
ONE_HOST = ("hogwild", "allreduce", "sandblaster")  # by shared memory, by plain TCP, by a log on one disk
# What a batch method does not use: it takes all samples in every iteration, and chooses its own step sizes.
STOCHASTIC = (
    "optimizer", "lr", "lr_schedule", "epochs", "evaluate_every", "monitor", "patience", "target", "clip_norm",
    "on_divergence", "ema",
)  # fmt: skip


def refuse_conflicts(options: Mapping[str, Any]) -> None:
    """Raise UsageError if options contradict each other. options: by name, those that differ from their defaults."""
    from .named_choices import compression_of, method_of, optimizer_of

    method = method_of(options.get("method", "downpour"))
    if "placement" in options:
        _refuse_any(
            options, PLANNING, "E228", "has no effect with --placement, which already fixes how the model is cut"
        )
    if "on" in options:
        why = "has no effect with --on, whose file names the machines"
        _refuse_any(options, ["cluster"], "E228", why)
        if method.name in ONE_HOST:
            facts = f"method {method.name} does not go over several machines"
            raise UsageError("E269", facts, fix="leave --on out, or --method downpour")
    elif "ports" in options:
        raise UsageError("E228", "--ports has no effect without --on", fix="leave --ports out")
    if "resume" in options and "init" in options:
        raise UsageError("E287", "--resume and --init both name the weights to start from", fix="leave one of them out")
    if method.name == "sandblaster":
        facts = "has no effect with method sandblaster, which uses all samples in every iteration"
        _refuse_any(options, STOCHASTIC, "E296", facts, fix="; see --method sandblaster:iterations=40,step=1")
        if not all(Group.parse(text).frozen for text in options.get("groups", ())):
            raise UsageError("E296", f"--group {facts}, but for frozen ones", fix="leave it out")
    else:
        optimizer = optimizer_of(options.get("optimizer"), options.get("lr"), options.get("lr_schedule"))
        for group in map(Group.parse, options.get("groups", ())):
            group.change(optimizer)
    if "overwrite" in options and "out" not in options:
        _refuse_any(options, ["overwrite"], "E230", "has no effect without --out: a run folder without a name is new")
    if "keep_checkpoints" in options and "checkpoint_every" not in options:
        _refuse_any(options, ["keep_checkpoints"], "E230", "has no effect without --checkpoint-every")
    if "schedule" in options and "micro_batches" not in options and "placement" not in options:
        _refuse_any(options, ["schedule"], "E230", "has no effect without --micro-batches")
    if "compress" in options:
        compression_of(options["compress"])
        _refuse_compression(method)
    _check_interval(options.get("checkpoint_every", 0), method)


def _refuse_any(options: Mapping[str, Any], names: Collection[str], code: str, why: str, *, fix: str = "") -> None:
    """Raise UsageError for the first of these options that is given."""
    for name in names:
        if name in options:
            flag = "--pin" if name == "pins" else "--" + name.replace("_", "-")
            raise UsageError(code, f"{flag} {why}", fix=f"leave {flag} out{fix}")


def _refuse_compression(method: "AnyMethod") -> None:
    if not method.pushes_gradients:
        facts = f"method {method.name} pushes nothing that could be compressed"
        raise UsageError("E267", facts, fix="leave --compress out, or --method downpour")


def _check_interval(every: int | str, method: "AnyMethod") -> None:
    from .checkpoint_interval import parse_interval

    parse_interval(every, method)
