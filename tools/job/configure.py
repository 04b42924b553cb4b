"""`configure`: fits a planned replica into a run - first weights, a dry run, the number of steps, shards and slices."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from torch import nn

from ...errors import BadInput, UsageError
from ...models.task import Task
from ...partition.capture.tracing_error import Untraceable
from ...ps.methods.sandblaster import Sandblaster
from ...ps.optimizers.rates import RatedOptimizer, Scheduled
from ...ps.optimizers.registry import AnyOptimizer
from ...ps.optimizers.schedule import TabulatedSchedule
from ...ps.slices.region import Region
from ...ps.slices.slicing import ParameterSlice, count_shards, slice_parameters
from ...runtime.worker.flat_gradient import SparseTable
from ...runtime.worker.program import Program
from ...runtime.worker.uncut_worker import UncutWorker
from ..config.checkpoint_interval import parse_interval
from ..config.group_optimizer import arrange_groups, count_groups, demand_average, list_ties
from ..config.monitor import Monitor, choose_monitor
from ..config.named_choices import compression_of, method_of, optimizer_of
from ..config.run_config import RunConfig
from ..run_folder import INITIAL, PLACEMENT
from ..samples.read_samples import example_batch
from ..task.capture_task import FAILS_UNTRACED
from ..units import OPEN_ENDED, format_number
from .checkpoint_order import next_run_number
from .claim_folder import resumes_in_place
from .divergence import check_divergence_policy
from .dry_run import DryRun, dry_run, dry_run_without_weights
from .initial_weights import InitialWeights, state_names, write_initial_weights
from .job import Job, most_roles
from .process_specs import TrainingSpec
from .replica_plan import ReplicaPlan, has_sparse_gradients
from .resume import (
    COUNTED_TWICE,
    ResumeState,
    carry_best,
    check_same_parameters,
    check_same_stream,
    describe_new_count,
    describe_new_state,
    find_masters,
    initial_weights_file,
    other_model_error,
    read_best_value,
)

if TYPE_CHECKING:
    from ...models.task import Task
    from ...ps.methods.registry import AnyMethod

OTHER_WEIGHTS = "E317"
DENSE = "sparse gradients travel dense, as the model is cut; with --machines 1 the rows travel that a step touches"


def configure(config: RunConfig, plan: ReplicaPlan, staged: Path, start: ResumeState | None = None) -> Job:
    """Return the job of a planned replica; write its placement and its first weights.

    staged: where they are written, to be moved to the run folder. start: what it resumes from. Raises UsageError where
    the options do not fit the task, such as too few samples for so many replicas; BadInput where the task's data does
    not go through its model.
    """
    method = method_of(config.method)
    if plan.placement is not None:
        plan.placement.save(staged / PLACEMENT)
    weights = _write_weights(config, plan, staged, start)
    trial = _try_a_batch(plan, weights)
    _check_target(config, plan, trial)
    training = _make_training_spec(config, plan, trial, start, staged)
    names, resumed = state_names(weights.model), list[str]()
    if start is not None:
        resumed = [*start.notes, *_describe_new_order(start, plan.batch, trial, method)]
    regions = _lay_out_programs(plan.programs) if plan.is_cut else [_lay_out_model(plan.task, weights.model)]
    groups, ties = config.parameter_groups, list_ties(weights.model)
    base = _choose_optimizer(config, method, plan.task)
    optimizer = arrange_groups(base, groups, config.ema, regions, ties)
    demand_average(optimizer, method, config.replicas)
    remarks = count_groups(optimizer, groups, len(plan.spec.frozen))
    remarks += describe_new_state(start, method.configure_shards(optimizer, config.replicas).optimizer)
    remarks += _describe_schedule(base, method, training)
    wanted = choose_shard_count(config, plan)
    slices = _slice_parameters(plan, regions, trial.tables, wanted, method)
    shards = count_shards(slices)
    fewer = [f"{shards} shards, not {wanted}: no more have a part of the parameters"] if shards < wanted else []
    check_same_parameters(start, plan.task.name, {region.name for one in regions for region in one})
    training = msgspec.structs.replace(training, masters=find_masters(start, staged / INITIAL))
    return Job(
        config,
        method,
        optimizer,
        compression_of(config.compress),
        shards,
        plan.task.name,
        plan.placement,
        training,
        plan.programs,
        plan.evaluations,
        regions,
        slices,
        names,
        [
            *(*resumed, *plan.notes, *fewer, *weights.notes, *trial.notes, *remarks),
            *_describe_cut(plan, regions, trial.tables),
        ],
        next_run_number(config.folder),
        None if start is None else start.stream,
        others=plan.others,
    )


def _choose_optimizer(config: RunConfig, method: "AnyMethod", task: Task) -> RatedOptimizer:
    """Return the optimizer of a run; its rate depends on the task and the method where the user names none."""
    times = task.rate_scale * method.scale_default_rate(config.replicas)
    return optimizer_of(config.optimizer, config.lr, config.lr_schedule, times=times)


def choose_shard_count(config: RunConfig, plan: ReplicaPlan) -> int:
    """Return how many shards there are: by default one for each machine, so that none holds the whole model."""
    if config.shards is not None or not plan.is_cut:
        return config.shards or 1
    return min(len(plan.programs), most_roles(config) - len(plan.programs) * config.replicas)


def _write_weights(config: RunConfig, plan: ReplicaPlan, staged: Path, start: ResumeState | None) -> InitialWeights:
    """Write the file that the run begins with."""
    init = None if config.init is None else Path(config.init)
    notices = list[str]()
    source = initial_weights_file(init, staged, on_notice=notices.append) if start is None else start.weights
    try:
        weights = write_initial_weights(
            staged / INITIAL,
            plan.task,
            seed=config.seed,
            constants=plan.constants,
            weights_file=source,
            partial=source != init,  # a checkpoint has nothing that no operator uses
            cut=plan.is_cut,
        )
    except BadInput as error:
        if start is None or error.code != OTHER_WEIGHTS:
            raise
        raise other_model_error(start.folder, plan.task.name, error.facts.rpartition("the file ")[2]) from error
    return replace(weights, notes=(*notices, *weights.notes))


def _try_a_batch(plan: ReplicaPlan, weights: InitialWeights) -> DryRun:
    """Put one micro-batch through the model, the loss and all that scores it."""
    example = example_batch(plan.task, plan.batch // plan.micro_batches)
    known: dict[str, Any] = {"has_leaf_modules": plan.has_leaf_modules, "autocast": plan.spec.autocast}
    if not weights.whole:
        return dry_run_without_weights(plan.task, example, **known)
    try:
        return dry_run(plan.task, weights.model, example, uncut=not plan.is_cut, **known)
    except BadInput as error:
        if plan.failure is not None and plan.failure.code == FAILS_UNTRACED:
            raise plan.failure from error
        raise


def _check_target(config: RunConfig, plan: ReplicaPlan, trial: DryRun) -> None:
    """Raise UsageError where an accuracy is aimed at, and the task counts no right answers."""
    if config.target is not None and trial.scores is not None and trial.scores.correct is None:
        facts = f"--target {config.target:g}: task {plan.task.name} counts no right answers"
        raise UsageError("E225", facts, fix="give the task correct=..., or leave --target out")


def _make_training_spec(
    config: RunConfig, plan: ReplicaPlan, trial: DryRun, start: ResumeState | None, staged: Path
) -> TrainingSpec:
    """Share the samples of all epochs out in whole batches, the steps of each replica."""
    method = method_of(config.method)
    optimizer = _choose_optimizer(config, method, plan.task)
    own = 1 if isinstance(method, Sandblaster) else plan.task.epochs  # a batch method only asks for one portion
    epochs = config.epochs or own
    start_step, first = _divide_steps(start, trial, plan.batch * config.replicas, method)
    steps = (epochs * trial.samples - first) // plan.batch // config.replicas
    if trial.parts and not trial.samples:
        _check_open_ended(config, plan, optimizer)
        steps = OPEN_ENDED
    if steps < 1:
        raise UsageError(
            "E223",
            f"{epochs} epochs of {trial.samples} samples have no batch of {plan.batch} for each of "
            f"{config.replicas} replicas",
            fix="fewer --replicas, a smaller --batch, or more --epochs",
        )
    check_same_stream(start, trial.parts, plan.batch)
    if start_step >= steps:
        passes = format_number(epochs, "epoch")
        facts = f"{passes}: {steps} steps of each replica; the checkpoint was made after {start_step}"
        needed = math.ceil(((start_step + 1) * plan.batch * config.replicas + first) / trial.samples)
        raise UsageError("E284", f"{facts}: nothing is left to do", fix=f"--epochs {needed}, or more")
    method.check(optimizer, config.replicas, steps)
    check_divergence_policy(config.on_divergence, method, optimizer, config.replicas, steps)
    every, out = parse_interval(config.checkpoint_every, method), config.folder.resolve()
    return TrainingSpec(
        task=plan.spec,
        batch=plan.batch,
        micro_batch=plan.batch // plan.micro_batches,
        seed=config.seed,
        replicas=config.replicas,
        steps=steps,
        evaluate_every=config.evaluate_every or (0 if steps == OPEN_ENDED else max(1, steps // epochs)),
        folder=str(out),
        schedule=config.schedule,
        clip_norm=config.clip_norm,
        tables=list(trial.tables),
        start_step=start_step,
        first_sample=first,
        version=method.count_updates(start_step, config.replicas),
        optimizer_state={} if start is None else {n: path.name for n, path in start.optimizer_state.items()},
        checkpoint_every=every.steps,
        checkpoint_s=every.seconds,
        samples=trial.samples,
        monitor=_settle_monitor(config, plan, trial, staged),
        parts=trial.parts,
        epochs=epochs,
    )


def _divide_steps(start: ResumeState | None, trial: DryRun, step_samples: int, method: "AnyMethod") -> tuple[int, int]:
    """Return the step to begin with, and how many samples come before the first step of all, so that all fits.

    Parts that are leased know themselves what is left of them, and a step of a batch method takes all samples.
    """
    if start is None:
        return 0, 0
    steps, rest = divmod(start.samples, step_samples)
    knows_itself = isinstance(method, Sandblaster) or (trial.parts and method.leases_batches)
    return steps, 0 if knows_itself else rest


def _describe_new_order(start: ResumeState, batch: int, trial: DryRun, method: "AnyMethod") -> list[str]:
    """Return a note where the rest of an epoch is not what was left of it: samples come in an order that depends on how
    many there are, and batches of buckets on their size, too. Parts of a stream have orders of their own, and a batch
    method takes all samples.
    """
    before = start.progress.batch
    if trial.parts or isinstance(method, Sandblaster) or not trial.samples:
        return []
    if trial.has_buckets and before not in (0, batch) and start.samples % trial.samples:
        return [f"batches of buckets have {batch} samples now, not {before}: {COUNTED_TWICE}"]
    return describe_new_count(start, trial.samples)


def _settle_monitor(config: RunConfig, plan: ReplicaPlan, trial: DryRun, staged: Path) -> Monitor | None:
    """Return the score that decides which weights are kept, and what it was at best where the run is resumed.

    The best weights of a run in another folder come along.
    """
    scores = trial.scores
    monitor = choose_monitor(
        config.monitor,
        config.patience,
        plan.task.metrics,
        counts_correct=plan.task.correct is not None if scores is None else scores.correct is not None,
        has_loss=scores is None or scores.loss is not None,
    )
    if monitor is None or config.resume is None:
        return monitor
    run, is_same = Path(config.resume), resumes_in_place(config)
    before = read_best_value(config.folder, monitor.score) if is_same else carry_best(run, staged, monitor.score)
    return msgspec.structs.replace(monitor, before=before)


def _check_open_ended(config: RunConfig, plan: ReplicaPlan, optimizer: AnyOptimizer) -> None:
    """Raise UsageError where a schedule needs to know how long the run is, and nobody does."""
    if isinstance(optimizer, Scheduled):
        name = optimizer.schedule.name
        facts = f"schedule {name} of the learning rate: nobody knows how many samples task {plan.task.name} has"
        fix = "give the dataset a __len__, or the task samples=..., or cutset.Parts(files, read, samples=...)"
        raise UsageError("E258", facts, fix=fix)


def _describe_schedule(optimizer: AnyOptimizer, method: "AnyMethod", training: TrainingSpec) -> list[str]:
    """Return a remark where a schedule was made of a function for another number of updates than there are."""
    if not isinstance(optimizer, Scheduled) or not isinstance(optimizer.schedule, TabulatedSchedule):
        return []
    points, own = len(optimizer.schedule.factors), method.configure_shards(optimizer, training.replicas).optimizer
    updates = method.count_updates(training.steps, training.replicas) if own == optimizer else training.steps
    if points == updates:
        return []
    return [f"the schedule has {points:,} points, the run {updates:,} updates: the points are spread evenly over these"]


def _lay_out_programs(programs: Sequence[Program]) -> list[list[Region]]:
    """Return where the trained parameters of each machine lie in its flat buffer."""
    regions: list[list[Region]] = []
    for program in programs:
        of_one = []
        for state in program.states:
            if state.offset >= 0:
                piece = program.pieces[state.piece]
                info = program.tensors[piece.tensor]
                box = list(piece.box)
                of_one.append(Region(info.name, list(info.shape), list(info.extents), box, state.offset))
        regions.append(of_one)
    return regions


def _lay_out_model(task: "Task", model: nn.Module) -> list[Region]:
    """Return where the trained parameters of a whole model lie, one after the other; BadInput where that cannot be."""
    regions, offset = [], 0
    for name, parameter in UncutWorker(model, task.loss).parameters.items():
        shape = list(parameter.shape)
        regions.append(Region(name, shape, shape, [(0, n) for n in shape], offset))
        offset += parameter.numel()
    return regions


def _slice_parameters(
    plan: ReplicaPlan,
    regions: Sequence[Sequence[Region]],
    tables: Sequence[SparseTable],
    shards: int,
    method: "AnyMethod",
) -> list[ParameterSlice]:
    """Divide the flat buffers of all machines among the shards."""
    if plan.is_cut:
        return slice_parameters([program.elements for program in plan.programs], shards, whole=method.needs_one_shard)
    elements = max((region.stop for region in regions[0]), default=0)
    return slice_parameters([elements], shards, tables=[tables], whole=method.needs_one_shard)


def _describe_cut(plan: ReplicaPlan, regions: Sequence[Sequence[Region]], tables: Sequence[SparseTable]) -> list[str]:
    """Return remarks on what travels, and on why a model is not cut."""
    if plan.is_cut:
        return [DENSE] if has_sparse_gradients(plan.task) else []
    notes = []
    if plan.failure is not None:
        facts = plan.failure.traced if isinstance(plan.failure, Untraceable) else plan.failure.facts
        notes.append(f"it is trained uncut, data parallel only: {facts}")
    starts = {table.start for table in tables}
    names = [region.name for region in regions[0] if region.offset in starts and region.stop > region.offset]
    if names:
        notes.append(f"of {', '.join(names)} the rows travel that a step touches; the model is not cut for that")
    return notes
