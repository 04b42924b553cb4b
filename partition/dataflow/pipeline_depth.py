"""The order of machines in a pipeline: how deep it is from one on, and who would run ahead of the end."""

import networkx as nx

from .dataflow import Flow


def pipeline_depths(flow: Flow) -> list[int]:
    """By machine: the longest way to the end, in stages, its own counted in.

    Machines that wait for each other in forward make up one stage.
    """
    ways: nx.DiGraph[int] = nx.DiGraph((edge.source, edge.target) for edge in flow.edges)
    ways.add_nodes_from(range(flow.cut.machines))
    groups = nx.condensation(ways)
    depth: dict[int, int] = {}
    for group in reversed(list(nx.topological_sort(groups))):
        depth[group] = 1 + max((depth[after] for after in groups.successors(group)), default=0)
    return [depth[groups.graph["mapping"][machine]] for machine in range(flow.cut.machines)]


def running_ahead(flow: Flow, *, training: bool) -> list[int]:
    """Machines that never wait for the one with the results, not even by way of others.

    They would run ahead of it without end: in evaluation all that only send, in training those that no gradient
    comes back to.
    """
    waits: nx.DiGraph[int] = nx.DiGraph()
    waits.add_nodes_from(range(flow.cut.machines))
    for edge in (*flow.edges, *(flow.shares if training else ())):
        waits.add_edge(edge.target, edge.source)
        if training and any(flow.graph.tensors[flow.pieces[copy].tensor].gradient for _, copy in edge.pairs):
            waits.add_edge(edge.source, edge.target)
    ends = {flow.pieces[piece].machine for piece in flow.results}
    held = ends | {machine for end in ends for machine in nx.ancestors(waits, end)}
    return [machine for machine in range(flow.cut.machines) if machine not in held]
