"""`cutset bench plan --graphs`: plans each published graph, one result a graph and number of devices."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..bench_table import BenchTable, Column
from .graphs.graph_files import PROFILE, GraphFile
from .graphs.hypergraph import Hypergraph
from .graphs.layer_graph import LayerGraph
from .hypergraph_cut import partition_hypergraph
from .max_load_placement import LayerPlacement, plan_throughput
from .pipedream_stages import plan_pipeline
from .published_results import find_published
from .replicated_stages import plan_replicated_pipeline

PARTS = (2, 4, 8, 16)  # of METIS' published tables
STAGES = (2, 4, 8, 16)  # machines of a pipeline


@dataclass(frozen=True)
class GraphResult:
    """The plan of a graph on a number of devices.

    objective: of our best plan, in `unit`. contiguous: of the best pipeline whose stages have one machine each, None
    if there is none; proven: whether no such pipeline can be better. reference: published objectives by method.
    details: the plan itself, for programs.
    """

    graph: str
    format: str
    machines: int
    cpus: int
    unit: str
    objective: float
    contiguous: float | None
    proven: bool
    one_machine: float | None
    reference: dict[str, float]
    seconds: float
    details: dict[str, Any]


def plan_graph(file: GraphFile, *, machines: int | None, seed: int, limit_s: float) -> Iterator[GraphResult]:
    """Plan one graph. machines: instead of the file's own number, or the usual ones. limit_s: for each result."""
    graph = file.graph
    if isinstance(graph, Hypergraph):
        usual = [parts for parts in PARTS if parts <= len(graph.weights)] or [1]
        for parts in [machines] if machines else usual:
            yield _plan_parts(file, graph, parts, seed, limit_s)
    elif file.format == PROFILE:
        for stages in [machines] if machines else STAGES:
            yield _plan_stages(file, replace(graph, accelerators=stages), seed)
    else:
        yield _plan_devices(file, replace(graph, accelerators=machines or graph.accelerators), seed, limit_s)


def _plan_devices(file: GraphFile, graph: LayerGraph, seed: int, limit_s: float) -> GraphResult:
    begin = time.monotonic()
    plan = plan_throughput(graph, seed=seed, stop=_make_deadline(limit_s))
    seconds = time.monotonic() - begin
    return GraphResult(
        graph=file.path.name,
        format=file.format,
        machines=graph.accelerators,
        cpus=graph.cpus,
        unit="largest load",
        objective=plan.best.objective,
        contiguous=plan.contiguous.objective if plan.contiguous else None,
        proven=plan.proven,
        one_machine=sum(layer.time for layer in graph.layers),
        reference=find_published(file.path.name, graph.accelerators),
        seconds=seconds,
        details={
            "split": _describe_split(graph, plan.best),
            "contiguous_split": _describe_split(graph, plan.contiguous) if plan.contiguous else None,
        },
    )


def _describe_split(graph: LayerGraph, placed: LayerPlacement) -> dict[str, Any]:
    """Return a placement as the benchmark's own programs write it."""
    devices: list[dict[str, Any]] = [{"load": load, "nodes": []} for load in placed.loads]
    for layer, device in zip(graph.layers, placed.device_of, strict=True):
        devices[device]["nodes"].append(int(layer.name))
    split = {"fpgas": devices[: graph.accelerators], "cpus": devices[graph.accelerators :]}
    return {"maxLoad": placed.objective, **split}


def _plan_stages(file: GraphFile, graph: LayerGraph, seed: int) -> GraphResult:
    begin = time.monotonic()
    plan = plan_pipeline(graph, seed=seed)
    replicated = plan_replicated_pipeline(graph, seed=seed)
    seconds = time.monotonic() - begin
    return GraphResult(
        graph=file.path.name,
        format=file.format,
        machines=graph.accelerators,
        cpus=0,
        unit="s per stage",
        objective=replicated.seconds,
        contiguous=plan.seconds,
        proven=plan.proven,
        one_machine=sum(layer.time for layer in graph.layers),
        reference=find_published(file.path.name, graph.accelerators),
        seconds=seconds,
        details={
            "stages": {x.name: stage for x, stage in zip(graph.layers, replicated.stage_of, strict=True)},
            "replicas": list(replicated.replicas),
            "one_replica_stages": {x.name: stage for x, stage in zip(graph.layers, plan.stage_of, strict=True)},
        },
    )


def _plan_parts(file: GraphFile, graph: Hypergraph, parts: int, seed: int, limit_s: float) -> GraphResult:
    begin = time.monotonic()
    partition = partition_hypergraph(graph, parts, seed=seed, stop=_make_deadline(limit_s))
    seconds = time.monotonic() - begin
    return GraphResult(
        graph=file.path.name,
        format=file.format,
        machines=parts,
        cpus=0,
        unit="edge cut" if graph.is_graph else "km1",
        objective=partition.connectivity,  # which of a graph is the edge cut
        contiguous=None,
        proven=False,
        one_machine=None,
        reference=find_published(file.path.name, parts),
        seconds=seconds,
        details={
            "nets_cut": partition.cut,
            "imbalance": partition.imbalance,
            "parts": list(partition.part_of),
        },
    )


def _make_deadline(limit_s: float) -> Callable[[], bool]:
    end = time.monotonic() + limit_s
    return lambda: time.monotonic() > end


COLUMNS: tuple[Column[GraphResult], ...] = (
    Column("graph", "graph", align="left"),
    Column("objective is", "unit", align="left"),
    Column("devices", value=lambda row: str(row.machines) + (f" + {row.cpus} CPU" if row.cpus else "")),
    Column("objective", "objective", lambda value: _format_number(value)),
    Column("contiguous", value=lambda row: _describe_contiguous(row)),
    Column("one machine", "one_machine", lambda value: _format_number(value)),
    Column("published", value=lambda row: _describe_reference(row)),
    Column("seconds", "seconds", "{:.1f}".format),
    *(Column("", key) for key in ("format", "machines", "cpus", "contiguous", "proven", "reference", "details")),
)


def tabulate(rows: Sequence[GraphResult]) -> BenchTable[GraphResult]:
    """Return the table of the results; the notes say what its signs mean."""
    notes = ["published: what others report for a graph of this name; never used to find our plans"]
    if any(row.contiguous is not None and not row.proven for row in rows):
        notes.insert(0, "~: the best contiguous plan found; there are too many to prove that it is optimal")
    return BenchTable(COLUMNS, rows, notes=notes)


def _describe_contiguous(row: GraphResult) -> str | None:
    return None if row.contiguous is None else f"{'' if row.proven else '~'}{_format_number(row.contiguous)}"


def _describe_reference(row: GraphResult) -> str | None:
    return ", ".join(f"{who} {_format_number(value)}" for who, value in row.reference.items()) or None


def _format_number(value: float) -> str:
    """Return a whole number as it is, any other with four decimals."""
    return str(int(value)) if float(value).is_integer() and abs(value) >= 1 else f"{value:.4f}"
