# ruff: noqa: RUF009 (`option` makes the field of a dataclass)
"""`RunConfig`: every option of a training run, declared once.

The options of `cutset train`, the arguments of `cutset.train()` and the file config.json of a run are made from its
fields (option.py). Wrong values are refused in one place for all of them. It imports nothing heavy, so that `--help` is
fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..path_option import require_path, require_utf8
from ..task.factory_name import name_factory
from ..task.load_task import TaskSpec
from ..task.plan_request import DESKTOP, PlanRequest
from .engine_name import FORMS, check_engine, check_ports, parse_engine
from .option import Option, first_type, fraction, number, one_of, option, option_of, strings, whole_number
from .option_conflicts import refuse_conflicts
from .option_values import DEFAULT_OPTIMIZER, RETRY_SCALED, STOP
from .parameter_group import Group

if TYPE_CHECKING:
    from ...partition.placement.placement_file import Placement
    from ...ps.methods.registry import AnyMethod
    from ...ps.optimizers.rates import RatedOptimizer
    from ...ps.optimizers.schedule import AnySchedule
    from ...ps.slices.compression import AnyCompression

TASK, PLAN, TRAINING, REPLICAS, FOLDER = (
    "Task",
    "Plan",
    "Training",
    "Replicas, shards and hosts",
    "Run folder and checkpoints",
)


@dataclass(frozen=True)
class RunConfig:
    """The options of a training run, as the user gives them: as text, or in Python also as objects.

    task: its name, "file.py:factory", or in Python the function that makes it, if it stands in a file; it becomes its
    name.

    An option counts as given if it differs from its default. UsageError if the value of an option is wrong, or if
    options have no effect together or with the method.
    """

    task: str | Callable[..., Any]
    _: KW_ONLY

    data: str | None = option(
        group=TASK,
        metavar="KIND:PATH",
        help="Data on disk, for tasks that need it: mnist:DIR, fsdd:DIR, libsvm:FILE or text:FILE.",
    )
    inputs: Sequence[str] = option(
        (), group=TASK, flag="--input", metavar="SHAPE", check=strings,
        help="Input of a bare module: 32x3x224x224, or 32x128:int64. Repeat it for several inputs.",
    )  # fmt: skip
    batch: int | None = option(
        group=TASK, check=whole_number(1), shown_default="the task's own", help="Samples per step of a replica."
    )
    leaf_modules: Sequence[str] = option(
        (), group=TASK, metavar="GLOB", check=strings,
        help="Modules that stay whole and are not traced, so they may branch on data: 'encoder.layers.*'.",
    )  # fmt: skip
    autocast: str | None = option(
        group=TASK,
        choices=("bfloat16",),
        help="Run torch.autocast in this dtype; parameters and gradients stay float32.",
    )
    trust_trace: bool = option(
        False, group=TASK, help="Do not check that the traced model computes what plain torch does, step by step."
    )

    machines: int | None = option(
        group=PLAN, shown_default="1", help="Machines to split each replica across; all of them are used."
    )
    max_machines: int | None = option(
        group=PLAN, help="Instead of --machines: use at most this many, and only as many as pay off."
    )
    cluster: Path | str | None = option(
        group=PLAN,
        metavar="FILE|here|desktop",
        shown_default="here, or $CUTSET_CLUSTER",
        help="Cluster file with the machines and links, as `cutset probe` writes it; here: processes of this machine, "
        "which is measured once; desktop: desktops on gigabit Ethernet, by constants.",
    )
    placement: Path | str | Placement | None = option(
        group=PLAN, metavar="FILE", help="Use this placement instead of planning one."
    )
    objective: str = option(
        "time",
        group=PLAN,
        choices=("time", "bytes", "memory"),
        check=one_of("time", "bytes", "memory", code="E208"),
        help="What to minimise: step time, bytes sent, or peak memory per machine.",
    )
    pins: Sequence[str] = option(
        (), group=PLAN, flag="--pin", metavar="GLOB=MACHINE", check=strings,
        help="Keep modules, operators or parameters on a machine: --pin 'encoder.*=0'. Can be repeated.",
    )  # fmt: skip
    micro_batches: int = option(
        1, group=PLAN, help="Split each batch into this many parts, which flow through the machines as a pipeline."
    )
    candidates: str = option(
        "", group=PLAN, metavar="KIND", help="Consider only plans of this kind: mesh, metis, slices, stages or tiles."
    )

    method: str | AnyMethod = option(
        "downpour", group=TRAINING, metavar="NAME[:OPTION=VALUE,...]",
        help="How replicas train together, e.g. downpour:fetch=4,push=4. `cutset methods` lists all.",
    )  # fmt: skip
    optimizer: str | RatedOptimizer | None = option(
        group=TRAINING,
        metavar="NAME[/tau][:OPTION=VALUE,...]",
        shown_default=DEFAULT_OPTIMIZER,
        help="How gradients change parameters, e.g. adam:beta1=0.8. `cutset methods` lists all.",
    )
    lr: float | None = option(group=TRAINING, shown_default="the optimizer's own", help="Learning rate.")
    lr_schedule: str | AnySchedule | None = option(
        group=TRAINING,
        metavar="NAME[:OPTION=VALUE,...]",
        shown_default="the same rate throughout",
        help="How the rate changes over the run, e.g. cosine:warmup=0.05. `cutset methods` lists all.",
    )
    groups: Sequence[str | Group] = option(
        (), group=TRAINING, flag="--group", metavar="PATTERN,...:OPTION=VALUE,...",
        help="Other options of the optimizer for some parameters: 'dims<2,*.bias:weight_decay=0', "
        "'body.*:lr_scale=0.1' or 'wte.*:frozen=true'. Can be repeated; the first that matches counts.",
    )  # fmt: skip
    ema: float | None = option(
        group=TRAINING,
        metavar="DECAY",
        check=fraction("E220", "a decay", such=0.999),
        help="Also keep an exponential moving average of the weights, in model-ema.safetensors.",
    )
    clip_norm: float = option(
        0.0, group=TRAINING, check=number(0), help="Clip the global gradient norm of each replica to this; 0 disables."
    )
    epochs: int | None = option(
        group=TRAINING,
        check=whole_number(1),
        shown_default="the task's own",
        help="Passes over the training data, all replicas together.",
    )
    target: float | None = option(
        group=TRAINING,
        check=fraction("E225", "a fraction of correct answers", such=0.95),
        help="Report the time to this test accuracy, e.g. 0.95.",
    )
    evaluate_every: int | None = option(
        group=TRAINING,
        metavar="STEPS",
        check=whole_number(1),
        shown_default="after each epoch",
        help="Evaluate on test samples after every so many steps of each replica.",
    )
    monitor: str | None = option(
        group=TRAINING,
        metavar="[max:|min:]SCORE",
        help="Keep the weights with the best test_loss, test_accuracy or metric, in best.safetensors.",
    )
    patience: int | None = option(
        group=TRAINING,
        check=whole_number(1),
        metavar="EVALUATIONS",
        help="End early, after so many evaluations in which --monitor's score, or else test_loss, was not the best.",
    )
    baseline: bool = option(True, group=TRAINING, help="Also train in one process on the same samples, to compare.")
    schedule: str = option(
        "dataflow",
        group=TRAINING,
        choices=("dataflow", "gpipe", "1f1b"),
        help="Order of micro-batches on each machine: as data arrives; all forward passes first, which needs the most "
        "memory; or one forward, one backward.",
    )
    on_divergence: str = option(
        STOP,
        group=TRAINING,
        choices=(STOP, RETRY_SCALED),
        check=one_of(STOP, RETRY_SCALED, code="E285"),
        help="If values become NaN or infinite: stop, or restart with the learning rate divided by the staleness.",
    )
    seed: int = option(0, group=TRAINING, check=whole_number(0, 2**32 - 1), help="Random seed.")

    replicas: int = option(1, group=REPLICAS, check=whole_number(1), help="Copies of the model to train.")
    shards: int | None = option(
        group=REPLICAS,
        check=whole_number(1),
        shown_default="one per machine of a replica",
        help="Parameter server shards.",
    )
    compress: str | AnyCompression | None = option(
        group=REPLICAS,
        metavar="NAME[:OPTION=VALUE,...]",
        help="Compress pushed gradients: bf16, int8, threshold:tau=0.001 or topk:fraction=0.01.",
    )
    restarts: int = option(
        3, group=REPLICAS, check=whole_number(0, 1000), help="Restarts allowed per replica or shard."
    )
    on: str | None = option(
        group=REPLICAS,
        metavar="ENGINE",
        check=check_engine,
        shown_default="this machine",
        help=f"Run on other machines: {FORMS}.",
    )
    ports: str | None = option(
        group=REPLICAS,
        metavar="FIRST-LAST",
        check=check_ports,
        shown_default="any free ones",
        help="With --on: the ports at which roles, and the launcher, listen: 40000-40100.",
    )
    host_wait: float = option(
        60.0,
        group=REPLICAS,
        metavar="SECONDS",
        check=number(0),
        help="With --on: where the machines left have no room for a lost one's processes, wait so long for one.",
    )

    out: Path | str | None = option(
        group=FOLDER,
        metavar="FOLDER",
        shown_default="a new one, runs/NUMBER-TASK, to which runs/last leads",
        help="The run folder.",
    )
    tensorboard: bool = option(
        False,
        group=FOLDER,
        help="Also write losses and scores as TensorBoard's events, into tensorboard of the folder.",
    )
    learn: bool = option(
        False, group=FOLDER, help="Keep what was mispredicted of steps, for later plans for processes of this machine."
    )
    overwrite: bool = option(
        False, group=FOLDER, help="Remove the run that --out holds, once this one is ready to start; no other files."
    )
    init: Path | str | None = option(
        group=FOLDER,
        metavar="FILE|RUN",
        help="Start from these weights: a safetensors file (a plain state_dict), the last checkpoint of a run, or a "
        "folder as on Hugging Face's Hub.",
    )
    resume: Path | str | None = option(
        group=FOLDER,
        metavar="RUN",
        help="Continue from the last checkpoint of a run; machines, replicas and shards may differ.",
    )
    checkpoint_every: str | int = option(
        "0", group=FOLDER, metavar="STEPS|TIME",
        help="Write a checkpoint every so many steps of each replica, or about every 30s, 5min or 2h; 0 writes only "
        "the last. It saves the shards' state only: with averaging, diloco and easgd the replicas' local optimizer "
        "state is lost, and so are compression residuals.",
    )  # fmt: skip
    keep_checkpoints: int = option(
        3, group=FOLDER, check=whole_number(1), help="Checkpoints to keep, with --checkpoint-every."
    )

    @property
    def parameter_groups(self) -> list[Group]:
        """The groups of parameters with options of their own."""
        return [Group.parse(str(group)) for group in self.groups]

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", name_factory(self.task))
        for one in fields(self):
            declared = option_of(one)
            if declared is not None:
                self._settle(one, declared)
        refuse_conflicts({one.name: getattr(self, one.name) for one in fields(self) if self.is_given(one.name)})
        _ = self.plan_request  # which raises UsageError for impossible plans

    def _settle(self, one: Field[Any], declared: Option) -> None:
        """Check the value of an option, and bring it into one form, so that equal configs compare equal.

        Lists become tuples, and texts of paths become `Path`s.
        """
        value = getattr(self, one.name)
        if first_type(one) == "Sequence":
            value = (value,) if isinstance(value, str | Group) else tuple(value)
            if one.name == "groups":
                value = tuple(str(Group.parse(str(group))) for group in value)
        elif first_type(one) == "Path" and isinstance(value, str):
            require_path(declared.flag, value)
            value = Path(value)
        object.__setattr__(self, one.name, value)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, Path):
                require_path(declared.flag, str(text))
            elif isinstance(text, str):
                require_utf8(declared.flag, text)
        if declared.check is not None and value is not None:
            declared.check(declared.flag, value)

    def is_given(self, name: str) -> bool:
        """Return whether an option differs from its default."""
        (default,) = (one.default for one in fields(self) if one.name == name)
        value = getattr(self, name)
        return bool(value != (Path(default) if isinstance(value, Path) and isinstance(default, str) else default))

    @property
    def trains_alone(self) -> bool:
        """Whether one process trains as well, for comparison: it has no checkpoint to resume from."""
        return self.baseline and self.resume is None

    @property
    def task_name(self) -> str:
        """How the processes of the run name the task."""
        return name_factory(self.task)

    @property
    def folder(self) -> Path:
        """The run folder of a config that names one; `prepare_run` chooses it where the user does not."""
        assert self.out is not None
        return Path(self.out)

    @property
    def task_spec(self) -> TaskSpec:
        """How the processes of the run load the task."""
        inputs, whole = tuple(self.inputs), tuple(self.leaf_modules)
        return TaskSpec(self.task_name, self.data, inputs, self.batch, whole, self.autocast or "", self.trust_trace)

    @property
    def plan_request(self) -> PlanRequest:
        """The plan that is requested for a replica, unless there is a placement."""
        names_machines = any(value is not None for value in (self.machines, self.max_machines, self.cluster))
        cluster = None if self.cluster is None else Path(self.cluster)
        if self.on is not None:
            cluster = parse_engine(self.on).cluster or Path(DESKTOP)
        return PlanRequest(
            machines=self.machines if names_machines else 1,
            max_machines=self.max_machines,
            cluster=cluster,
            candidates=self.candidates,
            objective=self.objective,
            pins=tuple(self.pins),
            micro_batches=self.micro_batches,
            seed=self.seed,
            replicas=self.replicas,
        )
