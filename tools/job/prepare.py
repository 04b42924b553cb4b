"""`prepare`: from the options of a run to a job that can start - load, capture, plan and configure.

What of a run can go wrong before a process is started goes wrong here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from ...errors import CheckpointError, UsageError
from ...partition.cluster.machines import Cluster
from ...partition.placement.placement_file import Placement
from ...partition.placement.placement_file import load as load_placement
from ...ps.methods.sandblaster import Sandblaster
from ..config.config_file import save_config
from ..config.group_optimizer import find_frozen
from ..config.named_choices import method_of, optimizer_of
from ..config.run_config import RunConfig
from ..open_files import allow_open_files
from ..run_folder import stage_files
from ..samples.read_samples import read_split
from ..task.capture_task import CapturedTask, find_untrained
from ..task.frozen_parameters import freeze
from ..task.load_task import TaskSpec, load_task
from ..task.plan_request import PlanRequest
from ..task.plan_task import micro_batch_spec, with_placement
from ..unfinished.unfinished_run import complete_unfinished
from .claim_folder import claim_folder, follow_links, lock_folder, point_last, resumes_in_place
from .configure import configure
from .job import Job, most_roles
from .portion_size import check_resumable, choose_portion_size
from .replica_plan import WholeModel, capture_replica, plan_replica
from .resume import ResumeState, load_resume_state

if TYPE_CHECKING:
    from ...models.task import Task


FindMachines = Callable[[CapturedTask, TaskSpec, PlanRequest, Callable[[str], None]], Cluster | None]


class PrepareIn(Protocol):
    """Prepares a run in the folder of its config."""

    def __call__(self, config: RunConfig, *, fresh: bool) -> Job:
        """Return the job. fresh: what an earlier run has left is removed, once nothing can go wrong any more."""
        ...


@contextmanager
def prepare_run(config: RunConfig, prepare_in: PrepareIn | None = None) -> Iterator[Job]:
    """Prepare a run in a folder that is locked for as long as the context lasts; see `claim_folder` and `prepare`.

    prepare_in: prepares it there in another way, given the config with the folder, and whether that begins anew.
    """
    with claim_folder(config) as folder:
        settled = replace(config, out=folder, resume=_settle_path(config.resume), init=_settle_path(config.init))
        notes = _complete_resumed(settled)
        job = (prepare_in or prepare)(settled, fresh=not resumes_in_place(settled))
        job.notes.extend(notes)
        if config.out is None:
            point_last(folder)
        yield job


def _complete_resumed(config: RunConfig) -> list[str]:
    """Where a run is resumed that was killed, make a checkpoint of what it had saved; nobody else trains there.

    Returns a sentence where that cannot be: there may be others.
    """
    if config.resume is None:
        return []
    folder = Path(config.resume)
    try:
        if resumes_in_place(config):
            complete_unfinished(folder)
        elif folder.is_dir():
            with lock_folder(folder):
                complete_unfinished(folder)
    except (OSError, CheckpointError, UsageError) as error:
        return [f"no checkpoint could be made of what {folder} had saved last: {error}"]
    return []


def _settle_path(path: Path | str | None) -> Path | None:
    """Return the path of another run as it is now, since runs/last will soon lead to this one."""
    return None if path is None else follow_links(Path(path))


def prepare(config: RunConfig, *, fresh: bool = False, find_machines: FindMachines | None = None) -> Job:
    """Load, capture, plan and configure a run; its folder then holds the options, the placement and the first weights.

    Nothing in the folder changes before every check has passed. fresh: all that an earlier run has left there is
    removed then. find_machines: returns the machines to plan for, else they are those of the plan that is requested.
    Raises UsageError, BadInput, Infeasible or CheckpointError, whichever step fails.
    """
    placement = read_placement(config.placement)
    check_role_count(config, placement)
    micro_batches = config.micro_batches if placement is None else placement.micro_batches
    request = config.plan_request
    may_be_whole = placement is None and request.machines == 1

    with stage_files(config.folder, fresh=fresh) as staged:
        save_config(config, staged)
        task = load_task(config.task_spec)
        frozen = find_frozen(config.parameter_groups, task) or tuple(placement.frozen if placement else ())
        task = freeze(task, frozen)
        named = msgspec.structs.replace(config.task_spec, frozen=frozen)
        spec = settle_batch(config, with_placement(placement, named), task)
        start = read_start(config, staged)
        capture = capture_replica(spec, task, micro_batches=micro_batches, may_be_whole=may_be_whole)
        if isinstance(capture, CapturedTask) and (untrained := find_untrained(capture.train, task)):
            task = freeze(task, untrained)  # where the model is not cut, the processes have no graph that says so
            spec = msgspec.structs.replace(spec, frozen=(*spec.frozen, *untrained))
        notes = list[str]()
        machines = None
        if find_machines is not None and placement is None and not isinstance(capture, WholeModel):
            micro_spec = micro_batch_spec(spec, task, micro_batches)
            machines = find_machines(capture, micro_spec, request, notes.append)
        plan = plan_replica(capture, spec, task, placement=placement, request=request, machines=machines)
        plan = replace(plan, notes=(*plan.notes, *notes))
        return replace(configure(config, plan, staged, start), cluster=machines)


def read_placement(choice: Path | str | Placement | None) -> Placement | None:
    """Return the placement that a run is given, if any, by its file or as it is."""
    return load_placement(Path(choice)) if isinstance(choice, Path | str) else choice


def check_role_count(config: RunConfig, placement: Placement | None) -> None:
    """Raise UsageError where a run would have too many roles, or more than may have files open."""
    machines = len(placement.machines if placement else config.plan_request.load_cluster().machines)
    roles = machines * config.replicas + (1 if config.shards is None else config.shards)
    if roles > (most := most_roles(config)):
        where = "on this host" if config.on is None else "in one run"
        fix = "fewer --machines, --replicas or --shards"
        raise UsageError("E221", f"{roles} processes {where}; {most} at most", fix=fix)
    allow_open_files(machines * config.replicas + (config.shards or machines) + 1)  # and perhaps a coordinator


def settle_batch(config: RunConfig, spec: TaskSpec, task: "Task") -> TaskSpec:
    """Return the spec; its batch is a portion of a batch method, where such a one runs and nothing else says it."""
    if not isinstance(method_of(config.method), Sandblaster):
        return spec
    check_resumable(config.resume)
    if spec.batch is not None or config.placement is not None:
        return spec
    size = choose_portion_size(len(read_split(task, "train")), task.batch, config.micro_batches)
    return msgspec.structs.replace(spec, batch=size)


def read_start(config: RunConfig, folder: Path) -> ResumeState | None:
    """Return what a run resumes from, if it does, in files in a folder; a batch method resumes by its own log."""
    method = method_of(config.method)
    if config.resume is None or isinstance(method, Sandblaster):
        return None
    optimizer = optimizer_of(config.optimizer, config.lr, config.lr_schedule)
    return load_resume_state(Path(config.resume), folder, method=method, optimizer=optimizer, seed=config.seed)
