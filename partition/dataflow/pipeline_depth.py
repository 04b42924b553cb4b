"""The order of machines in a pipeline: depth from each on, which need backpressure, which mix no micro-batches."""

import networkx as nx

from .dataflow import Dataflow


def pipeline_depths(dataflow: Dataflow) -> list[int]:
    """The longest path from each machine to the end, in stages, counting its own.

    Machines that wait for each other in the forward pass make up one stage.
    """
    sends: nx.DiGraph[int] = nx.DiGraph((edge.source, edge.target) for edge in dataflow.edges)
    sends.add_nodes_from(range(dataflow.cut.machines))
    groups = nx.condensation(sends)
    depth: dict[int, int] = {}
    for group in reversed(list(nx.topological_sort(groups))):
        depth[group] = 1 + max((depth[after] for after in groups.successors(group)), default=0)
    return [depth[groups.graph["mapping"][machine]] for machine in range(dataflow.cut.machines)]


def needs_backpressure(dataflow: Dataflow, *, training: bool) -> list[int]:
    """Machines that never wait for the one with the results, not even through others.

    Without backpressure they would run ahead without bound: in evaluation all that only send, in training those that
    no gradient comes back to.
    """
    waits: nx.DiGraph[int] = nx.DiGraph()
    waits.add_nodes_from(range(dataflow.cut.machines))
    for edge in (*dataflow.edges, *(dataflow.shared_edges if training else ())):
        waits.add_edge(edge.target, edge.source)
        if training and any(dataflow.graph.tensors[dataflow.pieces[copy].tensor].gradient for _, copy in edge.pairs):
            waits.add_edge(edge.source, edge.target)
    ends = {dataflow.pieces[piece].machine for piece in dataflow.results}
    held = ends | {machine for end in ends for machine in nx.ancestors(waits, end)}
    return [machine for machine in range(dataflow.cut.machines) if machine not in held]


def overwrites_repeatedly(dataflow: Dataflow, machine: int) -> bool:
    """Whether several segments of a machine touch a buffer that the step overwrites."""
    stages = {i.op: i.stage for i in dataflow.instructions if i.machine == machine}
    touching = dataflow.graph.overwritten.values()
    return any(len({stages[op.name] for op in ops if op.name in stages}) > 1 for ops in touching)
