"""The runs of a figure, each in a process of its own, some at a time; a figure that was stopped goes on where it was.

A run that has ended is a file in the folder of the figure, named by its setting; it counts for the same setting of the
same task alone.
"""

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ....errors import UsageError
from ....ps.methods.registry import parse_method
from ....ps.methods.sandblaster import Sandblaster
from ....runtime.channel.channel import Channel
from ....runtime.channel.message import LAUNCHER, Message
from ....runtime.hosts.heartbeat import RoleProgress
from ....runtime.hosts.host import Role
from ....runtime.launcher.launcher import Launcher
from ....whole_file import write_whole
from ...task.load_task import TaskSpec, load_task
from ...virtual_time.replica import SharedModel
from ...virtual_time.results import Point, SimulatedRun, SimulationSpec
from ...virtual_time.samples import read_samples_of
from ...virtual_time.sandblaster import IterationScore, run_sandblaster
from ...virtual_time.virtual_run import VirtualRun

ENTRY = f"{__name__}:run_curve"
VERSION = 1  # of what a run computes: runs of an older one are run again
Tell = Callable[[str], None]


class CurveSetup(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run: of replicas in virtual time, or by a batch method for its numbers alone.

    batch_method: as on the command line, of all samples of the task. seed: of the parameters that it begins with.
    """

    task: TaskSpec
    spec: SimulationSpec | None = None
    batch_method: str = ""
    seed: int = 0

    @property
    def digest(self) -> str:
        """What tells this run from others."""
        text = msgspec.json.encode([VERSION, msgspec.to_builtins(self)])
        return hashlib.sha256(text).hexdigest()[:16]


class CurveResult(msgspec.Struct, frozen=True):
    """What came of a run; one of both is there. cpu_s: that it took. peak_bytes: of memory."""

    run: SimulatedRun | None = None
    scores: list[IterationScore] = []
    cpu_s: float = 0.0
    peak_bytes: int = 0


def run_curves(setups: Mapping[str, CurveSetup], folder: Path, *, jobs: int, tell: Tell) -> dict[str, CurveResult]:
    """Return the results by name, of files where there are some, otherwise of runs, `jobs` of them at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {name: found for name, setup in setups.items() if (found := _read(folder, setup)) is not None}
    if results:
        tell(f"{len(results)} of {len(setups)} runs are there already, in {folder}")
    waiting = {name: setup for name, setup in setups.items() if name not in results}
    for name, value in _run_all(waiting, jobs):
        results[name] = msgspec.convert(value, CurveResult)
        write_whole(_path(folder, setups[name]), msgspec.json.encode(results[name]).decode())
        tell(f"{name}: {_describe(results[name])}")
    return {name: results[name] for name in setups}


def run_one(setup: CurveSetup, tell: Callable[[Point], object]) -> CurveResult:
    """Run one in a process of its own. tell: is called with each point of the curve as it is reached."""
    role = Role("run-0", ENTRY, msgspec.to_builtins(setup))
    result = CurveResult()
    with Launcher([role], job=f"curve-{uuid.uuid4().hex[:12]}") as launcher:
        launcher.start()
        for message in launcher.events():
            if message.kind == "point":
                tell(msgspec.convert(message.body, Point))
            elif message.kind == "finished":
                result = msgspec.convert(message.body["value"], CurveResult)
    return result


def _run_all(setups: Mapping[str, CurveSetup], jobs: int) -> Iterator[tuple[str, Any]]:
    """Run all; yield each name with the plain value of its result as it ends."""
    names = {f"run-{number}": name for number, name in enumerate(setups)}
    roles = [Role(role, ENTRY, msgspec.to_builtins(setups[name])) for role, name in names.items()]
    if not roles:
        return
    now, later = roles[:jobs], roles[jobs:]
    with Launcher(now, job=f"curves-{uuid.uuid4().hex[:12]}") as launcher:
        launcher.start()
        for message in launcher.events():
            if message.kind == "finished":
                if later:
                    launcher.add([later.pop(0)])
                yield names[message.sender], message.body["value"]


def run_curve(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Be one run."""
    import resource
    import time

    config = msgspec.convert(setup, CurveSetup)
    task = load_task(config.task)
    samples, begin_s = read_samples_of(task), time.process_time()

    def count(done: int) -> None:
        progress.value = done

    def show(point: Point) -> None:
        channel.send(LAUNCHER, Message("point", body=msgspec.to_builtins(point)))

    result = CurveResult()
    if config.spec is not None:
        model = SharedModel(task, seed=config.spec.seed)
        result = CurveResult(run=VirtualRun(config.spec, model, samples, on_point=show, on_batch=count).run())
    else:
        method = parse_method(config.batch_method)
        if not isinstance(method, Sandblaster):
            raise UsageError("E286", f"{config.batch_method} is no batch method", fix="sandblaster")
        model = SharedModel(task, seed=config.seed)
        result = CurveResult(scores=run_sandblaster(method, model, samples, seed=config.seed, on_portion=count))
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = msgspec.structs.replace(result, cpu_s=time.process_time() - begin_s, peak_bytes=usage)
    plain: dict[str, Any] = msgspec.to_builtins(result)
    return plain


def _path(folder: Path, setup: CurveSetup) -> Path:
    return folder / f"run-{setup.digest}.json"


def _read(folder: Path, setup: CurveSetup) -> CurveResult | None:
    """Return the result of a run that has ended; None where there is none, or its file is no such result."""
    try:
        return msgspec.json.decode(_path(folder, setup).read_bytes(), type=CurveResult)
    except (OSError, msgspec.MsgspecError):
        return None


def _describe(result: CurveResult) -> str:
    if result.run is None:
        last = result.scores[-1]
        return f"{last.test_accuracy or 0:.2%} after {last.evaluations} evaluations; {result.cpu_s:.0f} s of CPU"
    run = result.run
    end = f"stopped, {run.failure}" if run.failure else f"{run.points[-1].test_accuracy or 0:.2%}"
    return f"{end} after {run.seconds:.0f} simulated s; {result.cpu_s:.0f} s of CPU"
