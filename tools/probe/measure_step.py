"""Measures the time of a step: real worker processes, with ZeroMQ and CURVE between them, on this host or others.

A step is from the moment at which all workers of a replica begin with a batch to the moment at which the last of them
has all its gradients. What follows in training, fetching and pushing parameters, is not in it.
"""

import math
import statistics
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import torch

from ...models.task import Data
from ...partition.capture.exported_draft import collect_state
from ...partition.placement.placement_file import Placement
from ...runtime.hosts.host import LocalHost, Role
from ...runtime.hosts.versions import read_cores
from ...runtime.launcher.launcher import Launcher
from ...runtime.worker.program import Program
from ..job.process_specs import worker_name
from ..samples.read_samples import example_batch
from ..task.capture_task import CapturedTask, capture_task
from ..task.load_task import TaskSpec, build_model
from ..task.plan_task import compile_programs, load_cut
from ..tensor_files import save_state
from .timed_worker import STEP_ENTRY, UNCUT_ENTRY, StepSetup, WorkerRecord


@dataclass(frozen=True)
class ProcessPlacement:
    """Where the processes of a launcher run. address: the launcher's.

    hosts: by machine, the host that its process runs on; none: all run on this machine.
    """

    address: str = "127.0.0.1"
    hosts: tuple[LocalHost, ...] = ()

    def place_role(self, role: Role, machine: int) -> Role:
        """Return the role on the host of a machine."""
        return replace(role, host=self.hosts[machine].name) if self.hosts else role

    def make_launcher(self, roles: Sequence[Role], job: str) -> Launcher:
        """Return the launcher of these roles. job: its name begins so."""
        return Launcher(roles, job=f"{job}-{uuid.uuid4().hex[:12]}", hosts=self.hosts, address=self.address)


WARM_UP = 10
TURN_S, MAX_TURN = 0.3, 20  # seconds of a turn, about, and the most steps of it that count
Way = tuple[CapturedTask, Sequence[Program]]
"""A task as it was captured for these programs, one for each machine."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each step after the warm-up, in order.

    busy_s: the seconds of a median step in which the workers' threads had a core, summed over the workers; of several
    threads of torch in one worker, one counts. bytes_sent: by all workers in a step; bytes_left_out: of rows of zeros,
    which did not travel. before_bytes, peak_bytes: resident memory of each worker before it had a model, and at most.
    """

    seconds: tuple[float, ...]
    busy_s: float = 0.0
    bytes_sent: int = 0
    bytes_left_out: int = 0
    before_bytes: tuple[int, ...] = ()
    peak_bytes: tuple[int, ...] = ()

    @property
    def median_s(self) -> float:
        """The median step."""
        return statistics.median(self.seconds)

    @property
    def min_s(self) -> float:
        """The fastest step: what it takes on an idle machine."""
        return min(self.seconds)


def measure_placement(spec: TaskSpec, placement: Placement, steps: int = 200) -> float:
    """Return the median seconds of a warm step of a placement whose machines are processes of this host."""
    ready = capture_task(msgspec.structs.replace(spec, batch=placement.batch))
    trained, _ = compile_programs(ready, load_cut(ready, placement))
    return measure_programs(spec, ready, trained, steps=steps, micro_batches=placement.micro_batches).median_s


def measure_programs(
    spec: TaskSpec,
    ready: CapturedTask,
    programs: Sequence[Program],
    *,
    steps: int = 200,
    warm_up: int = WARM_UP,
    micro_batches: int = 1,
    process_placement: ProcessPlacement | None = None,
    paces: Sequence[Sequence[Mapping[str, float]]] = (),
    workers: int = 1,
    pauses: bool = True,
) -> StepTimes:
    """Measure the steps of a cut model: one process for each program, of as many threads as training would give it.

    The batch of a step has so many micro-batches of the captured size. process_placement: where they run. paces: by
    machine, what each segment takes at least (see StepSetup). workers: that are to share the cores of the host, if they
    are more than these. pauses: whether every step begins at one moment; else one follows the other, as in training.
    """
    process_placement = process_placement or ProcessPlacement()
    with tempfile.TemporaryDirectory(prefix="cutset-measure-") as folder:
        roles = make_roles(
            STEP_ENTRY,
            make_setup(spec, ready, Path(folder), steps=warm_up + steps, micro_batches=micro_batches, pauses=pauses),
            programs,
            process_placement=process_placement,
            paces=paces,
            workers=workers,
        )
        return _summarise(_run(roles, process_placement), warm_up, pauses=pauses)


def measure_in_turn(
    spec: TaskSpec,
    ways: Sequence[Way],
    *,
    steps: int,
    step_s: float,
    warm_up: int = WARM_UP,
    micro_batches: int = 1,
    process_placement: ProcessPlacement | None = None,
    workers: int = 1,
) -> list[StepTimes]:
    """Measure several ways to make the same steps, as `measure_programs` does each.

    All their processes are there at once, and make a few steps in turn: the speed of a machine that others share
    changes by more than the ways differ. The first step of a turn finds caches as others have left them, and is not
    counted, unless steps are so long that they fill caches themselves. step_s: what a step takes, about.
    """
    process_placement = process_placement or ProcessPlacement()
    counted, uncounted = max(1, min(MAX_TURN, steps, round(TURN_S / step_s))), int(step_s < TURN_S)
    turns, turn = math.ceil((warm_up + steps) / counted), counted + uncounted
    leaders, roles = [worker_name(number, 0) for number in range(len(ways))], list[Role]()
    with tempfile.TemporaryDirectory(prefix="cutset-measure-") as folder:
        for number, (ready, programs) in enumerate(ways):
            own = Path(folder) / str(number)
            own.mkdir()
            setup = make_setup(spec, ready, own, steps=turns * turn, micro_batches=micro_batches)
            setup = msgspec.structs.replace(setup, turn=turn, leaders=leaders, leader=number)
            roles += make_roles(
                STEP_ENTRY, setup, programs, process_placement=process_placement, workers=workers, number=number
            )
        records = iter(_run(roles, process_placement))
    return [_summarise(list(islice(records, len(programs))), warm_up, turn=uncounted * turn) for _, programs in ways]


def _summarise(records: Sequence[WorkerRecord], warm_up: int, *, pauses: bool = True, turn: int = 0) -> StepTimes:
    """Return the times of the steps: without pauses, from the end of one to the end of the next.

    turn: of so many steps the first is not counted, 0 where all are.
    """
    times = [[one for step, one in enumerate(r.times) if not turn or step % turn] for r in records]
    ends = list(zip(*(own[warm_up - (not pauses) :] for own in times), strict=True))
    last = [max(end for _, end, _ in step) for step in ends]
    took = [end - min(begin for begin, _, _ in step) for end, step in zip(last, ends, strict=True)]
    if not pauses:
        took = [end - before for before, end in pairwise(last)]
    busy = [sum(busy for _, _, busy in step) for step in ends]
    before, peaks = tuple(r.before_bytes for r in records), tuple(r.peak_bytes for r in records)
    sent, left_out = sum(r.bytes_sent for r in records), sum(r.bytes_left_out for r in records)
    return StepTimes(tuple(took), statistics.median(busy), sent, left_out, before, peaks)


def make_roles(
    entry: str,
    setup: StepSetup,
    programs: Sequence[Program],
    *,
    process_placement: ProcessPlacement,
    paces: Sequence[Sequence[Mapping[str, float]]] = (),
    workers: int = 1,
    number: int = 0,
) -> list[Role]:
    """Return one role for each program, each with an equal part of the cores of its host. workers: at least so many.

    number: of the replica, by which they are named.
    """
    names = [worker_name(number, machine) for machine in range(len(programs))]
    workers = max(workers, len(names), len(process_placement.hosts))
    roles = []
    for machine, (name, program) in enumerate(zip(names, programs, strict=True)):
        own = msgspec.structs.replace(
            setup,
            program=msgspec.msgpack.encode(program),
            peers=names,
            pace=list(paces[machine]) if paces else [],
        )
        roles.append(process_placement.place_role(_make_role(name, entry, own, workers), machine))
    return roles


def measure_uncut(
    spec: TaskSpec, ready: CapturedTask, *, steps: int = 200, workers: int = 1, pauses: bool = True
) -> StepTimes:
    """Measure the steps of the uncut model in plain torch, with the threads that each of so many workers would have.

    pauses: whether what is between two steps is left out.
    """
    with tempfile.TemporaryDirectory(prefix="cutset-measure-") as folder:
        setup = make_setup(spec, ready, Path(folder), steps=WARM_UP + steps)
        return _summarise(
            _run([_make_role(worker_name(0, 0), UNCUT_ENTRY, setup, workers)], ProcessPlacement()),
            WARM_UP,
            pauses=pauses,
        )


def make_setup(
    spec: TaskSpec, ready: CapturedTask, folder: Path, *, steps: int, micro_batches: int = 1, pauses: bool = True
) -> StepSetup:
    """Return the setup of all workers, with the file that they read; the program and the peers are still to come."""
    batch = _fill_randomly(example_batch(ready.task, ready.batch * micro_batches))
    model = build_model(ready.task, seed=0)
    values = collect_state(model, ready.task.loss, ready.constants)
    inputs = {f"batch input {i}": tensor for i, tensor in enumerate(batch.inputs)}
    targets = {f"batch target {i}": tensor for i, tensor in enumerate(batch.targets)}
    state = save_state(folder / "state.safetensors", values | inputs | targets)
    return StepSetup(spec, b"", str(state), list(inputs), list(targets), [], steps, pauses=pauses)


def _fill_randomly(batch: Data) -> Data:
    """Return the batch with random floats: on zeros some operators, as max pooling, are faster."""
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.rand(t.shape, dtype=t.dtype, generator=generator) if t.is_floating_point() else t for t in batch.inputs
    ]
    return Data(tuple(inputs), batch.targets)


def _make_role(name: str, entry: str, setup: StepSetup, workers: int) -> Role:
    threads = max(1, read_cores() // workers)
    return Role(name, entry, msgspec.to_builtins(setup, builtin_types=(bytes,)), threads=threads)


def _run(roles: Sequence[Role], process_placement: ProcessPlacement) -> list[WorkerRecord]:
    """Run the roles and return what they measured."""
    with process_placement.make_launcher(roles, "measure") as launcher:
        return [msgspec.convert(result, WorkerRecord) for result in launcher.run()]
