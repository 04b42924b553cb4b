"""One row a graph and number of machines: the objective that the planner comes to, and how long that took."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .hypergraph import Hypergraph
from .hypergraph_cut import cut_in_parts
from .layer_graph import LayerGraph
from .pipedream_stages import plan_pipeline
from .max_load_placement import Placed, plan_throughput
from .graph_files import PROFILE, GraphFile
from .published_results import published

PARTS = (2, 4, 8, 16)  # of METIS' published tables
STAGES = (2, 4)


@dataclass(frozen=True)
class GraphRow:
    """objective: of our best plan, in `unit`. contiguous: of the best pipeline of the graph, None where there is none;
    proven: whether that is the least there can be. details: the plan itself, for programs."""

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


def rows_of(file: GraphFile, *, machines: int | None, seed: int, limit_s: float) -> Iterator[GraphRow]:
    """The rows of one graph. machines: instead of the file's own number, or the usual ones. limit_s: for each row."""
    graph = file.graph
    if isinstance(graph, Hypergraph):
        usual = [parts for parts in PARTS if parts <= len(graph.weights)] or [1]
        for parts in [machines] if machines else usual:
            yield _parts(file, graph, parts, seed, limit_s)
    elif file.format == PROFILE:
        for stages in [machines] if machines else STAGES:
            yield _stages(file, replace(graph, accelerators=stages), seed)
    else:
        yield _devices(file, replace(graph, accelerators=machines or graph.accelerators), seed, limit_s)


def _devices(file: GraphFile, graph: LayerGraph, seed: int, limit_s: float) -> GraphRow:
    begin = time.monotonic()
    plan = plan_throughput(graph, seed=seed, stop=_deadline(limit_s))
    seconds = time.monotonic() - begin
    return GraphRow(
        graph=file.path.name,
        format=file.format,
        machines=graph.accelerators,
        cpus=graph.cpus,
        unit="largest load",
        objective=plan.best.objective,
        contiguous=plan.contiguous.objective if plan.contiguous else None,
        proven=plan.proven,
        one_machine=sum(layer.time for layer in graph.layers),
        reference=published(file.path.name, graph.accelerators),
        seconds=seconds,
        details={
            "split": _split(graph, plan.best),
            "contiguous_split": _split(graph, plan.contiguous) if plan.contiguous else None,
        },
    )


def _split(graph: LayerGraph, placed: Placed) -> dict[str, Any]:
    """A placement as the benchmark's own programs write it."""
    devices: list[dict[str, Any]] = [{"load": load, "nodes": []} for load in placed.loads]
    for layer, device in zip(graph.layers, placed.device_of, strict=True):
        devices[device]["nodes"].append(int(layer.name))
    split = {"fpgas": devices[: graph.accelerators], "cpus": devices[graph.accelerators :]}
    return {"maxLoad": placed.objective, **split}


def _stages(file: GraphFile, graph: LayerGraph, seed: int) -> GraphRow:
    begin = time.monotonic()
    plan = plan_pipeline(graph, seed=seed)
    seconds = time.monotonic() - begin
    return GraphRow(
        graph=file.path.name,
        format=file.format,
        machines=graph.accelerators,
        cpus=0,
        unit="s per stage",
        objective=plan.seconds,
        contiguous=plan.seconds,
        proven=plan.proven,
        one_machine=sum(layer.time for layer in graph.layers),
        reference=published(file.path.name, graph.accelerators),
        seconds=seconds,
        details={"stages": {x.name: stage for x, stage in zip(graph.layers, plan.stage_of, strict=True)}},
    )


def _parts(file: GraphFile, graph: Hypergraph, parts: int, seed: int, limit_s: float) -> GraphRow:
    begin = time.monotonic()
    found = cut_in_parts(graph, parts, seed=seed, stop=_deadline(limit_s))
    seconds = time.monotonic() - begin
    return GraphRow(
        graph=file.path.name,
        format=file.format,
        machines=parts,
        cpus=0,
        unit="edge cut" if graph.is_graph else "nets cut",
        objective=found.cut,
        contiguous=None,
        proven=False,
        one_machine=None,
        reference=published(file.path.name, parts),
        seconds=seconds,
        details={
            "connectivity": found.connectivity,
            "imbalance": found.imbalance,
            "parts": list(found.part_of),
        },
    )


def _deadline(limit_s: float) -> Callable[[], bool]:
    end = time.monotonic() + limit_s
    return lambda: time.monotonic() > end
