"""`prepare_script`: from a script, and the options of a run, to a job that can start.

A process runs the script until it prepares its model, and writes the first weights; so shards can be laid out.
"""

import tempfile
from pathlib import Path

import msgspec

from ...errors import BadInput, UsageError
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...ps.optimizers.parameter_groups import Averaged
from ...ps.optimizers.registry import AnyOptimizer
from ...ps.slices.slicing import count_shards, slice_parameters
from ...runtime.hosts.host import Role
from ...runtime.hosts.versions import read_cores
from ...runtime.launcher.launcher import Launcher
from ..config.checkpoint_interval import parse_interval
from ..config.config_file import save_config
from ..config.group_optimizer import demand_average
from ..config.named_choices import compression_of, method_of
from ..config.run_config import RunConfig
from ..job.checkpoint_order import next_run_number
from ..job.initial_weights import open_weights_file
from ..job.job import Job
from ..job.prepare import check_role_count
from ..job.process_specs import Script, TrainingSpec, unique_job_name
from ..job.resume import (
    ResumeState,
    check_same_parameters,
    describe_new_count,
    describe_new_state,
    find_masters,
    initial_weights_file,
    load_resume_state,
)
from ..job.stream_position import LoopPosition
from ..run_folder import INITIAL, stage_files
from ..task.load_task import TaskSpec
from ..tensor_files import save_state
from ..units import OPEN_ENDED, format_number
from .loop_passes import count_again, count_own_steps, spread_over
from .script_role import DescriptionSpec, describe_script
from .script_run import Describing, ModelDescription

MAX_NAMED = 3  # tensors that an error lists
DESCRIBE = f"{describe_script.__module__}:{describe_script.__name__}"


def prepare_script(config: RunConfig, script: Script, *, fresh: bool) -> Job:
    """Run a script until it prepares its model, and fit that into a run in the folder of the config.

    BadInput where the script fails before or cannot be trained so, UsageError where the options do not fit.
    """
    method = method_of(config.method)
    if not method.ends_at_any_step:
        facts = f"method {method.name} with a script that keeps its own loop, which may end at any step"
        raise UsageError("E265", facts, fix="--method downpour, ssp, sync, averaging, diloco or easgd")
    check_role_count(config, None)
    with stage_files(config.folder, fresh=fresh) as staged:
        save_config(config, staged)
        described = _describe(config, script, staged)
        base: AnyOptimizer = described.optimizer
        optimizer = base if config.ema is None else Averaged(described.optimizer, config.ema)
        demand_average(optimizer, method, config.replicas)
        method.check(optimizer, config.replicas, OPEN_ENDED)
        start = None
        if config.resume is not None:
            start = load_resume_state(Path(config.resume), staged, method=method, optimizer=optimizer, seed=config.seed)
            check_same_parameters(start, Path(script.path).name, {region.name for region in described.regions})
        notes = _replace_weights(config, described, staged, start)
        notes += describe_new_state(start, method.configure_shards(optimizer, config.replicas).optimizer)
        elements = max((region.stop for region in described.regions), default=0)
        slices = slice_parameters([elements], config.shards or 1, whole=False)
        training = _make_training_spec(config, described, start)
        loops, again = _resume_loops(start, training, lock_step=method.lock_step)
        again += describe_new_count(start, training.samples, in_passes=True)
        training = msgspec.structs.replace(training, masters=find_masters(start, staged / INITIAL))
        return Job(
            config,
            method,
            optimizer,
            compression_of(config.compress),
            count_shards(slices),
            Path(script.path).name,
            None,
            training,
            [],
            [],
            [described.regions],
            slices,
            described.names,
            [*([] if start is None else start.notes), *notes, *again],
            next_run_number(config.folder),
            script=script,
            loops=loops,
        )


def _describe(config: RunConfig, script: Script, staged: Path) -> ModelDescription:
    """Return what the script prepares; its weights are in the staged folder then."""
    spec = DescriptionSpec(script, Describing(str(staged.resolve() / INITIAL)))
    role = Role("script", DESCRIBE, msgspec.to_builtins(spec), threads=read_cores())
    with (
        tempfile.TemporaryDirectory(prefix="cutset-") as logs,
        Launcher([role], job=unique_job_name(), folder=Path(logs)) as launcher,
    ):
        launcher.start()
        for _ in launcher.events():
            pass
        return msgspec.convert(launcher.results[role.name], ModelDescription)


def _replace_weights(
    config: RunConfig, described: ModelDescription, staged: Path, start: ResumeState | None
) -> list[str]:
    """Write the weights that the run begins with, where a file has them; return notes. BadInput where it is another's.

    The file may have any name of a tied tensor.
    """
    notes = list[str]()
    init = None if config.init is None else Path(config.init)
    source = initial_weights_file(init, staged, on_notice=notes.append) if start is None else start.weights
    if source is None:
        return notes
    with TensorReader(staged / INITIAL) as own, open_weights_file(source) as other:
        aliases = {name: [name, *(n for n, first in described.names.items() if first == name)] for name in own.layouts}
        found = {name: next((n for n in all_ if n in other.layouts), None) for name, all_ in aliases.items()}
        wrong = [n for n, theirs in found.items() if theirs is None or other.layouts[theirs][1] != own.layouts[n][1]]
        if wrong:
            facts = f"the weights in {source} are not those of the script's model: {', '.join(wrong[:MAX_NAMED])}"
            raise BadInput("E317", f"{facts} is missing there, or has another shape", fix="the weights of this model")
        values = {name: other.tensor(theirs).to(own.layouts[name][0]) for name, theirs in found.items() if theirs}
    save_state(staged / INITIAL, values)
    return notes


def _make_training_spec(config: RunConfig, described: ModelDescription, start: ResumeState | None) -> TrainingSpec:
    """Return what all replicas are told; only the script knows how many steps there are."""
    method = method_of(config.method)
    start_step = 0 if start is None else start.samples // (described.batch * config.replicas)
    every = parse_interval(config.checkpoint_every, method)
    return TrainingSpec(
        task=TaskSpec(config.task_name),
        batch=described.batch,
        micro_batch=described.batch,
        seed=config.seed,
        replicas=config.replicas,
        steps=OPEN_ENDED,
        samples=described.samples,
        evaluate_every=0,
        folder=str(config.folder.resolve()),
        start_step=start_step,
        version=method.count_updates(start_step, config.replicas),
        optimizer_state={} if start is None else {n: path.name for n, path in start.optimizer_state.items()},
        checkpoint_every=every.steps,
        checkpoint_s=every.seconds,
    )


def _resume_loops(
    start: ResumeState | None, training: TrainingSpec, *, lock_step: bool
) -> tuple[list[LoopPosition], list[str]]:
    """Return where each replica begins in its data, and a note where samples are trained on again.

    Where replicas do not go in lock-step, each goes on after the steps that it made itself, not after as many as all
    made in the mean, which the run counts.
    """
    if start is None or not start.loops:
        return [LoopPosition(batch=training.batch)] * training.replicas, []
    before = start.loops[0]
    if (len(start.loops), before.batch) == (training.replicas, training.batch):
        return [one if lock_step else count_own_steps(one, training.start_step) for one in start.loops], []
    replicas, batch, begun = (len(start.loops), training.replicas), training.batch, training.start_step
    again = count_again(before, start.progress.step, replicas=replicas[0], batch=batch)
    loops = [
        spread_over(before, start.progress.step, start_step=begun, replicas=replicas, batch=batch, replica=replica)
        for replica in range(training.replicas)
    ]
    note = f"{format_number(again, 'sample')} trained on before, and again: batches have {batch} samples now"
    return loops, [note] if again else []
