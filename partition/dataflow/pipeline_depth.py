"""The order of machines in a pipeline: depth from each on, which need backpressure, micro-batches in flight."""

from collections import defaultdict

import networkx as nx

from .dataflow import RUN, Dataflow


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


def find_repeated_overwriters(dataflow: Dataflow) -> set[int]:
    """Return the machines of which several segments touch a buffer that the step overwrites.

    They finish one micro-batch before the next, as these must not mix.
    """
    touching = dataflow.graph.overwritten
    buffers = defaultdict[str, list[str]](list)  # by operator
    for buffer, ops in touching.items():
        for op in ops:
            buffers[op.name].append(buffer)
    stages = defaultdict[tuple[int, str], set[int]](set)
    for i in dataflow.instructions if touching else ():
        for buffer in buffers.get(i.op, ()) if i.kind == RUN else ():
            stages[i.machine, buffer].add(i.stage)
    return {machine for (machine, _), several in stages.items() if len(several) > 1}


def count_in_flight(dataflow: Dataflow, micro_batches: int) -> list[int]:
    """Return how many micro-batches each machine has begun and not finished at most: one for each machine there is."""
    alone, count = find_repeated_overwriters(dataflow) if micro_batches > 1 else (), dataflow.cut.machines
    return [1 if machine in alone else min(micro_batches, count) for machine in range(count)]
