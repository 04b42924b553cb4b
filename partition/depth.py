"""Pipeline depth: how many stages lie between a machine and the end of the model, for 1F1B schedules."""

import networkx as nx

from .exchange import Flow


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
