"""The measured time of a step: real worker processes, with ZeroMQ and CURVE between them, on this host or a venue.

A step is from the moment at which all workers of a replica begin with a batch to the moment at which the last of them
has all its gradients. What follows in training, fetching and pushing parameters, is not in it.
"""

import os
import statistics
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from ....models.task import Data
from ....partition.capture.export import state_values
from ....partition.placement.placement_file import Placement
from ....runtime.launcher.launcher import Launcher, Role
from ....runtime.worker.program import Program
from ...job.run_config import worker_name
from ...task.load_task import TaskSpec, build_model, example_batch
from ...task.plan_task import Captured, captured, compiled, matched
from ...job.export_weights import save_state
from ...probe.timed_worker import STEPPING, UNCUT, Setup, Times
from .venue import Venue

WARM_UP = 10


@dataclass(frozen=True)
class Measured:
    """Seconds of each step after the warm-up, in order. busy_s: in which the workers' threads had a core, all together,
    in a usual step; of several threads of torch in one worker, one.
    """

    seconds: tuple[float, ...]
    busy_s: float = 0.0

    @property
    def median_s(self) -> float:
        """The usual step."""
        return statistics.median(self.seconds)

    @property
    def least_s(self) -> float:
        """The quickest step: what it takes on a quiet machine."""
        return min(self.seconds)


def measured_step_s(spec: TaskSpec, placement: Placement, steps: int = 200) -> float:
    """Median seconds of a warm step of a placement, its machines being processes of this host."""
    ready = captured(msgspec.structs.replace(spec, batch=placement.batch))
    trained, _ = compiled(ready, matched(ready, placement))
    return measure(spec, ready, trained, steps=steps, micro_batches=placement.micro_batches).median_s


def measure(
    spec: TaskSpec,
    ready: Captured,
    programs: Sequence[Program],
    *,
    steps: int = 200,
    warm_up: int = WARM_UP,
    micro_batches: int = 1,
    venue: Venue | None = None,
    paces: Sequence[Sequence[tuple[float, float]]] = (),
) -> Measured:
    """The steps of a cut model: one process a program, of as many threads as training would give each.

    The batch of a step has so many micro-batches of the captured size. venue: where the processes run. paces: by
    machine, what each segment takes at least (see stepping.Setup).
    """
    venue = venue or Venue()
    with tempfile.TemporaryDirectory(prefix="cutset-measure-") as folder:
        roles = stepping_roles(
            STEPPING,
            setup_of(spec, ready, Path(folder), steps=warm_up + steps, micro_batches=micro_batches),
            programs,
            venue=venue,
            paces=paces,
        )
        times = _run(roles, venue)
    ends = list(zip(*times, strict=True))
    took = [max(end for _, end, _ in step) - min(begin for begin, _, _ in step) for step in ends]
    busy = [sum(busy for _, _, busy in step) for step in ends]
    return Measured(tuple(took[warm_up:]), statistics.median(busy[warm_up:]))


def stepping_roles(
    entry: str,
    setup: Setup,
    programs: Sequence[Program],
    *,
    venue: Venue,
    paces: Sequence[Sequence[tuple[float, float]]] = (),
) -> list[Role]:
    """One role a program, each with a share of the cores of the host that the venue is on."""
    names = [worker_name(0, machine) for machine in range(len(programs))]
    workers = max(len(names), len(venue.places))
    roles = []
    for machine, (name, program) in enumerate(zip(names, programs, strict=True)):
        own = msgspec.structs.replace(
            setup,
            program=msgspec.msgpack.encode(program),
            peers=names,
            pace=list(paces[machine]) if paces else [],
        )
        roles.append(venue.role(_role(name, entry, own, workers), machine))
    return roles


def measure_uncut(spec: TaskSpec, ready: Captured, *, steps: int = 200, workers: int = 1) -> Measured:
    """The steps of the model as it is, in plain torch, with the threads that each of so many workers would have."""
    with tempfile.TemporaryDirectory(prefix="cutset-measure-") as folder:
        setup = setup_of(spec, ready, Path(folder), steps=WARM_UP + steps)
        (times,) = _run([_role(worker_name(0, 0), UNCUT, setup, workers)], Venue())
    times = times[WARM_UP:]
    return Measured(tuple(end - begin for begin, end, _ in times), statistics.median(busy for *_, busy in times))


def setup_of(spec: TaskSpec, ready: Captured, folder: Path, *, steps: int, micro_batches: int = 1) -> Setup:
    """What all workers are told, with the file that they read; the program and the peers are still to come."""
    batch = _lively(example_batch(ready.task, ready.batch * micro_batches))
    model = build_model(ready.task, seed=0)
    values = state_values(model, ready.task.loss, ready.constants)
    inputs = {f"batch input {i}": tensor for i, tensor in enumerate(batch.inputs)}
    targets = {f"batch target {i}": tensor for i, tensor in enumerate(batch.targets)}
    state = save_state(folder / "state.safetensors", values | inputs | targets)
    return Setup(spec, b"", str(state), list(inputs), list(targets), [], steps)


def _lively(batch: Data) -> Data:
    """The batch with random numbers where it has floats: on zeros some operators, as max pooling, are quicker."""
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.rand(t.shape, dtype=t.dtype, generator=generator) if t.is_floating_point() else t for t in batch.inputs
    ]
    return Data(tuple(drawn), batch.targets)


def _role(name: str, entry: str, setup: Setup, workers: int) -> Role:
    threads = max(1, (os.cpu_count() or 1) // workers)
    return Role(name, entry, msgspec.to_builtins(setup, builtin_types=(bytes,)), threads=threads)


def _run(roles: Sequence[Role], venue: Venue) -> list[Times]:
    """What each role returns."""
    with Launcher(roles, job=f"measure-{uuid.uuid4().hex[:12]}", host=venue.host) as launcher:
        return [msgspec.convert(result, Times) for result in launcher.run()]
