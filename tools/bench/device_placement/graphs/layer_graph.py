"""`LayerGraph`: a profiled network as others publish it - layers with times and sizes, and who uses whose output.

The throughput objective is that of "Efficient Algorithms for Device Placement of DNN Graph Operators" (Tarnawski et
al., NeurIPS 2020, section 3). Times have the unit of the file; only their ratios matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One layer, or one operator.

    name: as its file calls it. time, cpu_time: on an accelerator and on a CPU core. output_time: to move its output
    between an accelerator and the host. size_bytes: what it holds on an accelerator. colour: layers of one colour share
    a device. on_accelerator: whether an accelerator can run it. backward: part of the backward pass. sync_time: for its
    parameters to cross the network four times, as they do in part when replicas add up their gradients.
    """

    name: str
    time: float
    cpu_time: float = 0.0
    output_time: float = 0.0
    size_bytes: float = 0.0
    colour: int | None = None
    on_accelerator: bool = True
    backward: bool = False
    sync_time: float = 0.0


@dataclass(frozen=True)
class LayerGraph:
    """Layers, edges (producer, consumer) between their numbers, and the devices that they are to run on."""

    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int], ...]
    accelerators: int
    cpus: int = 0
    memory_bytes: float = float("inf")

    def consumers(self) -> list[set[int]]:
        """Return for each layer the layers that use its output."""
        out: list[set[int]] = [set() for _ in self.layers]
        for source, target in self.edges:
            out[source].add(target)
        return out


def compute_device_loads(graph: LayerGraph, device_of: Sequence[int]) -> list[float]:
    """Return the load of every device, accelerators first, if layer i runs on device_of[i].

    An accelerator takes its layers' times, plus the output time once for each of its outputs that another device uses,
    plus once for each foreign output that it uses. A CPU takes its layers' times alone.
    """
    loads = [0.0] * (graph.accelerators + graph.cpus)
    for layer, device, users in zip(graph.layers, device_of, graph.consumers(), strict=True):
        accelerator = device < graph.accelerators
        loads[device] += layer.time if accelerator else layer.cpu_time
        elsewhere = {device_of[user] for user in users} - {device}
        if elsewhere and accelerator:
            loads[device] += layer.output_time
        for other in elsewhere:
            if other < graph.accelerators:
                loads[other] += layer.output_time
    return loads


def find_cycle(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the vertices of one cycle in order, the first again at the end; empty if there is none."""
    inputs: list[set[int]] = [set() for _ in range(count)]
    outputs: list[set[int]] = [set() for _ in range(count)]
    for source, target in edges:
        inputs[target].add(source)
        outputs[source].add(target)
    waits = [len(sources) for sources in inputs]
    ready = [v for v in range(count) if not waits[v]]
    while ready:
        for target in outputs[ready.pop()]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    at = next((v for v in range(count) if waits[v]), None)
    if at is None:
        return []
    # Whatever waits has an input that waits too, so walking back must meet itself.
    path: list[int] = []
    while at not in path:
        path.append(at)
        at = min(source for source in inputs[at] if waits[source])
    return [at, *reversed(path[path.index(at) :])]
