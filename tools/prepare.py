"""What of a training job can go wrong before a process is started: load, capture, plan, check, save, rehearse."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ..models.task import Task
from ..partition.errors import BadInput, UsageError
from ..partition.placement import Placement
from ..partition.untraceable import Untraceable
from ..ps.layout import Slice, layout
from ..ps.method import Serving
from ..ps.methods import AnyMethod
from ..ps.region import Region
from ..ps.rules import AnyRule
from ..runtime.plain import PlainWorker
from ..runtime.program import Program
from ..runtime.schedule import DATAFLOW
from .capturing import Captured, captured
from .course import Course
from .first_weights import First, state_names, write_first
from .load import TaskSpec, example_batch, load_task
from .planning import Wanted, compiled, matched, micro_spec, planned, traced_as
from .rehearsal import rehearse, rehearse_parts

LOGS = "logs"  # in the run folder, as the next two
PLACEMENT = "placement.json"
INITIAL = "initial.safetensors"
ROLES_MAX = 256
LR_MAX = torch.finfo(torch.float32).max
UNTRACEABLE = "E320"
FAILS_UNTRACED = "E321"  # the model fails without data: because it looks at the data, or because the example is wrong


@dataclass(frozen=True)
class Options:
    """What is asked for.

    wanted: the plan of a replica; placement: instead of a new one. baseline: also train in one process. target: test
    accuracy to report the time to. restarts: of each replica that is lost, at most. init: a file with the weights to
    begin with, instead of drawing them. schedule, clip_norm: see `Course`. spread: as many shards as machines of a
    replica.
    """

    spec: TaskSpec
    method: AnyMethod
    rule: AnyRule
    out: Path
    wanted: Wanted = field(default_factory=lambda: Wanted(machines=1))
    placement: Placement | None = None
    replicas: int = 1
    shards: int = 1
    epochs: int = 1
    seed: int = 0
    target: float | None = None
    baseline: bool = True
    restarts: int = 3
    schedule: str = DATAFLOW
    clip_norm: float = 0.0
    init: Path | None = None
    spread: bool = False


@dataclass(frozen=True)
class Prepared:
    """A job that can be started. programs, evaluations: by machine; empty where the model is trained uncut.

    names: of the model's state_dict; a tied tensor has several, and each leads to the one that the run knows it by.
    """

    options: Options
    task_name: str
    placement: Placement | None
    course: Course
    programs: Sequence[Program]
    evaluations: Sequence[Program]
    regions: list[list[Region]]
    slices: list[Slice]
    names: dict[str, str]
    notes: list[str] = field(default_factory=list)

    @property
    def machines(self) -> int:
        """Workers of a replica."""
        return len(self.regions)

    @property
    def serving(self) -> Serving:
        """What its shards do."""
        return self.options.method.serving(self.options.rule, self.options.replicas)

    @property
    def worker_threads(self) -> int:
        """Threads of torch in each worker, and in the one process that they are compared with."""
        return max(1, (os.cpu_count() or 1) // (self.machines * self.options.replicas))


def prepare(options: Options) -> Prepared:
    """Load, capture, plan and check; write the placement and the initial weights into the run folder."""
    _check(options)
    task = load_task(options.spec)
    micro_batches = options.placement.micro_batches if options.placement else options.wanted.micro_batches
    uncut = options.placement is None and options.wanted.machines == 1
    spec = traced_as(options.placement, micro_spec(options.spec, task, micro_batches))
    try:
        ready = captured(spec, task, advise=not uncut)
    except BadInput as error:
        if error.code not in (UNTRACEABLE, FAILS_UNTRACED) or not uncut:
            raise
        return _uncut(options, task, error)
    return _cut(options, ready)


def _check(options: Options) -> None:
    for name, value, least in (
        ("replicas", options.replicas, 1),
        ("shards", options.shards, 1),
        ("epochs", options.epochs, 1),
    ):
        if value < least:
            raise UsageError("E220", f"--{name} {value}; it must be at least {least}", fix=f"--{name} {least}")
    if options.target is not None and not 0 <= options.target <= 1:
        raise UsageError("E225", f"--target {options.target}; it is a share of right answers", fix="--target 0.95")
    if options.rule.lr > LR_MAX:
        raise UsageError("E226", f"--lr {options.rule.lr:g}; float32 ends at {LR_MAX:.3g}", fix="--lr 0.05")
    machines = len(options.placement.machines if options.placement else options.wanted.resolved().machines)
    roles = machines * options.replicas + (1 if options.spread else options.shards)
    if roles > ROLES_MAX:
        raise UsageError(
            "E221",
            f"{roles} processes on this host; {ROLES_MAX} at most",
            fix="fewer --machines, --replicas or --shards",
        )
    try:
        (options.out / LOGS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("E222", f"cannot make the run folder {options.out}: {error}", fix="--out FOLDER") from error


def _cut(options: Options, ready: Captured) -> Prepared:
    placement = options.placement or planned(ready, options.spec, options.wanted)
    cut = matched(ready, placement)
    trained, evaluated = compiled(ready, cut)
    placement.save(options.out / PLACEMENT)
    if options.spread:
        shards = min(len(trained), ROLES_MAX - len(trained) * options.replicas)
        options = replace(options, shards=shards, spread=False)
    first = _first(options, ready.task, ready.constants)
    by_hand = bool(ready.blocks)
    course = _course(options, ready.task, first, ready.batch, placement.micro_batches, by_hand=by_hand)
    regions = [_regions(program) for program in trained]
    slices = layout([program.elements for program in trained], options.shards)
    names, notes = state_names(first.model), [*ready.notes, *first.notes]
    return Prepared(options, ready.task.name, placement, course, trained, evaluated, regions, slices, names, notes)


def _uncut(options: Options, task: Task, error: BadInput) -> Prepared:
    """A model that cannot be traced, as `error` says, data parallel only."""
    first = _first(options, task, {}, cut=False)
    model = first.model
    names = state_names(model)
    try:
        course = _course(options, task, first, options.spec.batch or task.batch)
    except BadInput as found:
        if error.code == FAILS_UNTRACED:
            raise error from found
        raise
    regions, offset = [], 0
    for name, parameter in PlainWorker(model, task.loss).parameters.items():
        shape = list(parameter.shape)
        regions.append(Region(name, shape, shape, [(0, n) for n in shape], offset))
        offset += parameter.numel()
    facts = error.traced if isinstance(error, Untraceable) else error.facts
    note = f"it is trained uncut, data parallel only: {facts}"
    return Prepared(
        options, task.name, None, course, [], [], [regions], layout([offset], options.shards), names, [note]
    )


def _first(options: Options, task: Task, constants: Mapping[str, Tensor], *, cut: bool = True) -> First:
    """Write the file that the run begins with."""
    path = options.out / INITIAL
    return write_first(path, task, seed=options.seed, constants=constants, given=options.init, cut=cut)


def _course(
    options: Options,
    task: Task,
    first: First,
    micro_batch: int,
    micro_batches: int = 1,
    *,
    by_hand: bool = False,
) -> Course:
    """Rehearse, and share the samples of all epochs out in whole batches, the steps."""
    batch = micro_batch * micro_batches
    spec, example = traced_as(options.placement, options.spec), example_batch(task, micro_batch)
    if first.whole:
        samples = rehearse(task, first.model, example, autocast=spec.autocast)
    else:
        samples = rehearse_parts(task, example, by_hand=by_hand, autocast=spec.autocast)
    steps = options.epochs * samples // batch // options.replicas
    if steps < 1:
        raise UsageError(
            "E223",
            f"{options.epochs} epochs of {samples} samples have no batch of {batch} for each of {options.replicas} "
            "replicas",
            fix="fewer --replicas, a smaller --batch, or more --epochs",
        )
    options.method.check(options.rule, options.replicas, steps)
    every, initial = max(1, steps // options.epochs), options.out / INITIAL
    return Course(
        spec,
        batch,
        micro_batch,
        options.seed,
        options.replicas,
        steps,
        every,
        str(initial.resolve()),
        options.schedule,
        options.clip_norm,
    )


def _regions(program: Program) -> list[Region]:
    """Where the trained parameters of a machine lie in its flat buffer."""
    regions = []
    for state in program.states:
        if state.offset >= 0:
            piece = program.pieces[state.piece]
            info = program.tensors[piece.tensor]
            regions.append(Region(info.name, list(info.shape), list(info.extents), list(piece.box), state.offset))
    return regions
