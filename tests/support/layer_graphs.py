"""Small layer graphs to plan, and every placement of one, to compare with."""

import itertools
from collections.abc import Iterator

import networkx as nx
import numpy as np

from cutset.tools.bench.device_placement.graphs.layer_graph import Layer, LayerGraph, compute_device_loads
from cutset.tools.bench.device_placement.layer_groups import group_layers


def random_graph(seed: int, layers: int, *, accelerators: int = 2, cpus: int = 1, training: bool = False) -> LayerGraph:
    """A random graph without cycles: some layers of no time, some of one colour, some for a CPU alone.

    training: the second half of the layers is the backward pass, of the colours of the first.
    """
    rng = np.random.default_rng(seed)
    half = layers // 2 if training else layers
    made = []
    for i in range(layers):
        mirrored = 2 * half - 1 - i if training and 2 * half - 1 - i < half else None
        colour = i if i < half and training else mirrored
        if not training and rng.random() < 0.2:
            colour = int(rng.integers(2))
        made.append(
            Layer(
                name=str(100 + i),
                time=float(rng.integers(0, 6)),
                cpu_time=float(rng.integers(0, 30)),
                output_time=float(rng.integers(0, 5)) / 2,
                size_bytes=float(rng.integers(0, 4)),
                colour=colour,
                on_accelerator=cpus == 0 or bool(rng.random() < 0.9),
                backward=training and i >= half,
            )
        )
    edges = tuple((a, b) for a in range(layers) for b in range(a + 1, layers) if rng.random() < 2.0 / layers)
    return LayerGraph(tuple(made), edges, accelerators, cpus, memory_bytes=float(rng.integers(6, 40)))


def every_placement(graph: LayerGraph) -> Iterator[tuple[int, ...]]:
    """Every device of every layer that colours, memory and the layers themselves allow."""
    groups = group_layers(graph)
    for device_of in itertools.product(range(graph.accelerators + graph.cpus), repeat=groups.count):
        if groups.fits(device_of):
            yield tuple(device_of[group] for group in groups.group_of)


def is_contiguous(graph: LayerGraph, device_of: tuple[int, ...]) -> bool:
    """Whether the devices stand in some order that no pair of the graph's order goes against."""
    groups = group_layers(graph)
    device = {group: device_of[layer] for layer, group in enumerate(groups.group_of)}
    between: nx.DiGraph[int] = nx.DiGraph()
    between.add_edges_from((device[a], device[b]) for a, b in groups.order if device[a] != device[b])
    return bool(nx.is_directed_acyclic_graph(between))


def least_load(graph: LayerGraph, *, contiguous: bool) -> float:
    """The least largest load of all placements; infinite where there is none."""
    allowed = (p for p in every_placement(graph) if not contiguous or is_contiguous(graph, p))
    return min((max(compute_device_loads(graph, p)) for p in allowed), default=float("inf"))


def chain(*times: float, output_time: float = 0.0, accelerators: int = 2) -> LayerGraph:
    """Layers one after the other."""
    layers = tuple(Layer(str(i), time, output_time=output_time) for i, time in enumerate(times))
    return LayerGraph(layers, tuple((i, i + 1) for i in range(len(times) - 1)), accelerators)
