"""What of a training job can go wrong before a process is started: load, capture, plan, check, save, rehearse."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ...models.task import Task
from ...errors import BadInput, UsageError
from ...partition.placement.placement_file import Placement
from ...partition.capture.tracing_error import Untraceable
from ...ps.slices.compression import AnyCompression
from ...ps.slices.slicing import Slice, layout
from ...ps.methods.method import Serving
from ...ps.methods.registry import AnyMethod
from ...ps.slices.region import Region
from ...ps.optimizers.registry import AnyRule
from ...ps.methods.sandblaster import Sandblaster
from ...runtime.worker.uncut_worker import PlainWorker
from ...runtime.worker.program import Program
from ...runtime.worker.schedule import DATAFLOW
from ..task.capture_task import Captured, captured
from .run_config import Course
from ..training.divergence_restart import STOP, demand_possible
from .initial_weights import First, state_names, write_first
from .interval import interval
from ..task.load_task import TaskSpec, build_model, example_batch, load_task
from ..task.plan_task import Wanted, compiled, matched, micro_spec, planned, traced_as
from .portion_size import with_portions
from .dry_run import rehearse, rehearse_parts
from .resume import Resumed, demand_trained, initial, of_another_model, resumed

LOGS = "logs"  # in the run folder, as the next two
PLACEMENT = "placement.json"
INITIAL = "initial.safetensors"
ROLES_MAX = 256
LR_MAX = torch.finfo(torch.float32).max
UNTRACEABLE = "E320"
OTHER_WEIGHTS = "E317"
DENSE = "sparse gradients travel dense, as the model is cut; with --machines 1 the rows travel that a step touches"
FAILS_UNTRACED = "E321"  # the model fails without data: because it looks at the data, or because the example is wrong


@dataclass(frozen=True)
class Options:
    """What is asked for.

    wanted: the plan of a replica; placement: instead of a new one. baseline: also train in one process. target: test
    accuracy to report the time to. restarts: of each replica that is lost, at most. init: a file or run folder with
    the weights to begin with, instead of drawing them. schedule, clip_norm: see `Course`. spread: as many shards as
    machines of a replica. compression: of pushes. checkpoint_every: between two checkpoints, see interval.py; keep:
    so many of them. resume: a run folder or checkpoint to go on from. on_divergence: see damping.py.
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
    compression: AnyCompression | None = None
    checkpoint_every: int | str = 0
    keep: int = 3
    resume: Path | None = None
    on_divergence: str = STOP


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
    def checkpoint_versions(self) -> int:
        """Updates of the shards between two checkpoints, 0 for none."""
        every = self.course.checkpoint_every
        return self.options.method.updates(every, self.options.replicas) if every else 0

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
    options = with_portions(options, task)
    micro_batches = options.placement.micro_batches if options.placement else options.wanted.micro_batches
    uncut = options.placement is None and options.wanted.machines == 1
    spec = traced_as(options.placement, micro_spec(options.spec, task, micro_batches))
    sparse = asks_sparse(task)
    found = None if isinstance(options.method, Sandblaster) else resumed(options)
    if sparse and uncut and micro_batches == 1:
        return _uncut(options, task, found)
    try:
        ready = captured(spec, task, advise=not uncut)
    except BadInput as error:
        if error.code not in (UNTRACEABLE, FAILS_UNTRACED) or not uncut:
            raise
        return _uncut(options, task, found, error)
    return _cut(options, ready, found, [DENSE] if sparse else [])


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
    if options.compression is not None and not options.method.pushes:
        facts = f"method {options.method.name} pushes nothing that could be compressed"
        raise UsageError("E267", facts, fix="leave --compress out, or --method downpour")
    if options.resume is not None and options.init is not None:
        raise UsageError("E287", "--resume and --init both say what to begin with", fix="leave one of them out")
    interval(options.checkpoint_every, options.method)
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


def asks_sparse(task: Task) -> bool:
    """Whether a module of the task's model is to have sparse gradients, as nn.Embedding(sparse=True)."""
    modules = build_model(task, seed=0, device="meta").modules()
    return any(getattr(module, "sparse", False) is True for module in modules)


def _cut(options: Options, ready: Captured, found: Resumed | None, notes: Sequence[str]) -> Prepared:
    placement = options.placement or planned(ready, options.spec, options.wanted)
    cut = matched(ready, placement)
    trained, evaluated = compiled(ready, cut)
    placement.save(options.out / PLACEMENT)
    if len(trained) == 1 and placement.micro_batches == 1:  # there is nothing that plain torch does not do as well
        alone = _uncut(replace(options, spec=traced_as(placement, options.spec)), ready.task, found)
        return replace(alone, placement=placement, notes=[*ready.notes, *alone.notes])
    if options.spread:
        shards = min(len(trained), ROLES_MAX - len(trained) * options.replicas)
        options = replace(options, shards=shards, spread=False)
    first = _first(options, ready.task, ready.constants, found)
    by_hand = bool(ready.blocks)
    course = _course(options, ready.task, first, found, ready.batch, placement.micro_batches, by_hand=by_hand)
    regions = [_regions(program) for program in trained]
    demand_trained(found, options, ready.task.name, {region.name for of_one in regions for region in of_one})
    slices = layout([program.elements for program in trained], options.shards, whole=options.method.whole)
    names, notes = state_names(first.model), [*ready.notes, *first.notes, *notes]
    return Prepared(options, ready.task.name, placement, course, trained, evaluated, regions, slices, names, notes)


def _uncut(options: Options, task: Task, found: Resumed | None, error: BadInput | None = None) -> Prepared:
    """A model that is trained data parallel only: it cannot be traced, as `error` says, or is to have tables."""
    first = _first(options, task, {}, found, cut=False)
    model = first.model
    names = state_names(model)
    try:
        course = _course(options, task, first, found, options.spec.batch or task.batch, uncut=True)
    except BadInput as failure:
        if error is not None and error.code == FAILS_UNTRACED:
            raise error from failure
        raise
    regions, offset, tables = [], 0, []
    begins = {table.start: table for table in course.tables}
    for name, parameter in PlainWorker(model, task.loss).parameters.items():
        shape = list(parameter.shape)
        regions.append(Region(name, shape, shape, [(0, n) for n in shape], offset))
        tables += [name] if offset in begins and parameter.numel() else []
        offset += parameter.numel()
    demand_trained(found, options, task.name, {region.name for region in regions})
    notes = []
    if error is not None:
        facts = error.traced if isinstance(error, Untraceable) else error.facts
        notes.append(f"it is trained uncut, data parallel only: {facts}")
    if tables:
        notes.append(f"of {', '.join(tables)} the rows travel that a step touches; the model is not cut for that")
    slices = layout([offset], options.shards, tables=[course.tables], whole=options.method.whole)
    return Prepared(options, task.name, None, course, [], [], [regions], slices, names, notes)


def _first(
    options: Options, task: Task, constants: Mapping[str, Tensor], found: Resumed | None, *, cut: bool = True
) -> First:
    """Write the file that the run begins with."""
    path, given = options.out / INITIAL, initial(options) if found is None else found.weights
    partial = given != options.init  # a checkpoint has nothing that no operator uses
    try:
        return write_first(path, task, seed=options.seed, constants=constants, given=given, partial=partial, cut=cut)
    except BadInput as error:
        if found is None or error.code != OTHER_WEIGHTS:
            raise
        raise of_another_model(options, task.name, error.facts.rpartition("the file ")[2]) from error


def _course(
    options: Options,
    task: Task,
    first: First,
    found: Resumed | None,
    micro_batch: int,
    micro_batches: int = 1,
    *,
    by_hand: bool = False,
    uncut: bool = False,
) -> Course:
    """Rehearse, and share the samples of all epochs out in whole batches, the steps."""
    batch = micro_batch * micro_batches
    spec, example = traced_as(options.placement, options.spec), example_batch(task, micro_batch)
    if first.whole:
        rehearsed = rehearse(task, first.model, example, autocast=spec.autocast, uncut=uncut)
    else:
        rehearsed = rehearse_parts(task, example, by_hand=by_hand, autocast=spec.autocast)
    samples = rehearsed.samples
    steps = options.epochs * samples // batch // options.replicas
    if steps < 1:
        raise UsageError(
            "E223",
            f"{options.epochs} epochs of {samples} samples have no batch of {batch} for each of {options.replicas} "
            "replicas",
            fix="fewer --replicas, a smaller --batch, or more --epochs",
        )
    begin = 0 if found is None else found.samples // (batch * options.replicas)
    if begin >= steps:
        facts = f"the checkpoint was made after {begin} of {steps} steps of each replica: nothing is left to do"
        raise UsageError("E284", facts, fix=f"--epochs {options.epochs + 1}, or more")
    options.method.check(options.rule, options.replicas, steps)
    demand_possible(options.on_divergence, options.method, options.rule, options.replicas, steps)
    every, initial = max(1, steps // options.epochs), options.out / INITIAL
    between = interval(options.checkpoint_every, options.method)
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
        tables=list(rehearsed.tables),
        first=begin,
        version=options.method.updates(begin, options.replicas),
        memories={} if found is None else found.memories,
        checkpoint_every=between.steps,
        folder=str(options.out.resolve()),
        checkpoint_s=between.seconds,
        samples=samples,
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
