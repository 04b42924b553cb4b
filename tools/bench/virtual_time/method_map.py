"""Which method for which network: the time to an accuracy by every method, on networks of different speeds.

Once where all machines are of about the same speed, and once where one in eight is much slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...task.load_task import load_task
from ...units import format_bytes, format_number, format_seconds
from ...virtual_time.replica import SharedModel
from ...virtual_time.results import SimulationSpec, find_crossing
from ...virtual_time.samples import read_samples_of
from ..bench_table import BenchTable, Column
from .assumptions import REPLICAS_PER_SHARD
from .curve_runs import CurveSetup, Tell, run_curves
from .figure_request import CurveSetting, FigureRequest

SETTINGS = (
    CurveSetting("Downpour", "downpour", "adagrad", 0.5, adaptive=True),
    CurveSetting("Downpour every 4", "downpour:fetch=4,push=4", "adagrad", 0.5, adaptive=True),
    CurveSetting("SSP", "ssp:staleness=3", "adagrad", 0.5, adaptive=True),
    CurveSetting("DC-ASGD", "downpour", "dc-asgd-c", 0.5),
    CurveSetting("AdaDelay", "downpour", "adadelay:beta=50", 25.0),
    CurveSetting("sync", "sync", "adagrad", 1.5, adaptive=True),
    CurveSetting("sync, 1 backup", "sync:backups=1", "adagrad", 1.5, adaptive=True),
    CurveSetting("averaging every 10", "averaging:every=10", "adagrad", 1.5, adaptive=True),
    CurveSetting("DiLoCo every 20", "diloco:every=20", "adamw", 0.1, adaptive=True),
    CurveSetting("EASGD every 10", "easgd:every=10", "adagrad", 1.5, adaptive=True),
)
NETWORKS = {"1 Gb/s": 125e6, "100 Mb/s": 12.5e6, "10 Mb/s": 1.25e6}
PACES = {"all alike": 1.0, "one of eight 5 x slower": 5.0}


@dataclass(frozen=True)
class MapRequest(FigureRequest):
    """What is asked for. replicas: of every method. epochs: that a run gives up after."""

    epochs: float = 12.0
    target: float = 0.9
    replicas: int = 8


@dataclass(frozen=True)
class MapRow:
    """A method. seconds: to the accuracy, by pace and network; None where it never gets there."""

    name: str
    how: str
    seconds: dict[tuple[str, str], float | None]


@dataclass(frozen=True)
class MethodMap:
    """All methods, and what was assumed."""

    task: str
    target: float
    rows: Sequence[MapRow]
    facts: Sequence[str]

    @property
    def places(self) -> list[tuple[str, str]]:
        """The columns: pace and network."""
        return [(pace, network) for pace in PACES for network in NETWORKS]

    def best_at(self, place: tuple[str, str]) -> float | None:
        """Return the shortest time of a column."""
        return min((seconds for row in self.rows if (seconds := row.seconds[place]) is not None), default=None)


def simulate_map(request: MapRequest, folder: Path, *, jobs: int, tell: Tell) -> MethodMap:
    """Run what is not in the folder yet, and return the map."""
    task = load_task(request.task)
    count, size = len(read_samples_of(task).train), SharedModel(task, seed=request.seed).initial.nbytes
    specs = {
        (setting.name, pace, network): _make_spec(request, setting, slowdown, bandwidth, task.batch, count)
        for setting in SETTINGS
        for pace, slowdown in PACES.items()
        for network, bandwidth in NETWORKS.items()
    }
    for spec in specs.values():
        request.assumed.check_memory(spec, size)
    setups = {", ".join(place): CurveSetup(request.task, spec) for place, spec in specs.items()}
    results = run_curves(setups, folder, jobs=jobs, tell=tell)
    rows = []
    for setting in SETTINGS:
        seconds: dict[tuple[str, str], float | None] = {}
        for pace in PACES:
            for network in NETWORKS:
                run = results[", ".join((setting.name, pace, network))].run
                reached = run is not None and not run.failure
                seconds[pace, network] = find_crossing(run.points, request.target) if run and reached else None
        spec = specs[setting.name, next(iter(PACES)), next(iter(NETWORKS))]
        rows.append(MapRow(setting.name, f"{spec.method}; {spec.optimizer}, rate {spec.lr:g}", seconds))
    return MethodMap(task.name, request.target, rows, _describe(request, size, task.batch))


def _describe(request: MapRequest, size: int, batch: int) -> list[str]:
    """Return sentences on what is real and what is assumed; the columns say what the networks are."""
    real, assumed, *_ = request.assumed.describe(parameters=size, batch=batch)
    shards = max(1, request.replicas // REPLICAS_PER_SHARD)
    return [
        real,
        assumed.removesuffix(";") + ".",
        f"{request.replicas} replicas with {format_bytes(size)} of parameters, {format_number(shards, 'shard')};"
        " one seed.",
    ]


def _make_spec(
    request: MapRequest, setting: CurveSetting, slowdown: float, bandwidth: float, batch: int, count: int
) -> SimulationSpec:
    slow = 1 / 8 if slowdown > 1 else 0.0
    assumed = replace(request.assumed, bandwidth=bandwidth, stragglers=slow, slowdown=slowdown)
    return SimulationSpec(
        setting.method,
        setting.optimizer,
        request.choose_rate(setting),
        batch,
        int(request.epochs * count),
        request.replicas,
        seed=request.seed,
        machines=assumed.for_replicas(request.replicas),
        points=40,
        target=request.target,
    )


def tabulate(found: MethodMap) -> BenchTable[MapRow]:
    """Return the table of the map."""

    def column(place: tuple[str, str]) -> Column[MapRow]:
        heading = f"{place[1]}, {place[0]}"
        return Column(heading, heading, format_seconds, lambda row: row.seconds[place])

    columns: list[Column[MapRow]] = [
        Column("method", "name", align="left"),
        Column("method; optimizer", "how", align="left"),
        *(column(place) for place in found.places),
    ]
    title = f"Time to {found.target:.0%}"
    return BenchTable(columns, found.rows, title=title, notes=found.facts, name="methods", facts={"task": found.task})
