"""What `cutset bench plan` plans: nets whose good cuts are known, the bundled tasks, and nets drawn from seeds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ....models.tasks.locally_connected import LocallyConnected2d
from ....partition.capture.export import capture
from ....partition.cluster.machines import Cluster, alike
from ....partition.dataflow.cut import Cut, Placed, fused, together
from ....partition.dataflow.dataflow import flow
from ....partition.ir.graph import Graph
from ....partition.layouts.layout_search import grid, shapes
from ....partition.layouts.regular import slices, tiles
from ...task.load_task import TaskSpec
from ...task.plan_task import captured
from .random_nets import Net, mean_square, random_net

BUNDLED = (
    "digits",
    "digits_local",
    "mnist",
    "mnist_conv",
    "alexnet",
    "resnet",
    "speech",
    "transformer",
    "local_80m",
    "local_330m",
    "local_1700m",
)
RANDOM_MACHINES = (2, 3, 4, 8)


@dataclass(frozen=True)
class Subject:
    """A graph to plan, on how many machines. known: bytes forward of the cut that is known to be good, and its name."""

    name: str
    machines: int
    graph: Callable[[], Graph]
    known: Callable[[Graph], tuple[str, float]] | None = None


def subjects(*, seeds: int) -> Iterator[Subject]:
    """All of them; so many random nets."""
    tokens, width = 2048, 1024
    for machines in (2, 4, 8):
        layer = transformer_layer(tokens, width)
        yield Subject(layer.name, machines, _graph_of(layer), partial(_megatron, machines, tokens * width))
    yield Subject("square net 6 x 2560", 16, _graph_of(square_net(6, 2560)), partial(_slices, 16))
    for machines in (4, 9, 16):
        net = locally_connected(12)
        yield Subject(net.name, machines, _graph_of(net), partial(_tiles, machines))
    for name in BUNDLED:
        yield Subject(name, 4, _bundled(name))
    for seed in range(seeds):
        yield Subject(f"random {random_net(seed).name}", RANDOM_MACHINES[seed % 4], _graph_of(random_net(seed)))


def transformer_layer(tokens: int, width: int) -> Net:
    """One layer of 16 heads, norm first, without dropout."""
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, norm_first=True, batch_first=True)
        return Net("transformer layer", layer, (torch.empty(1, tokens, width),), mean_square)


def square_net(layers: int, width: int) -> Net:
    """Fully connected layers of one width, and ReLUs."""
    with torch.device("meta"):
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        return Net("square net", nn.Sequential(*parts), (torch.empty(32, width),), mean_square)


class _Padded(nn.Module):
    """A layer of local filters that keeps the size of its image."""

    def __init__(self, before: int, after: int, size: int) -> None:
        super().__init__()
        self.filters = LocallyConnected2d(before, after, size=(size + 2, size + 2), kernel=3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.filters(nn.functional.pad(x, (1, 1, 1, 1))))


def locally_connected(size: int) -> Net:
    """Three layers of 3x3 local filters of 8 maps over an image of one position a tile."""
    with torch.device("meta"):
        layers = [_Padded(before, 8, size) for before in (3, 8, 8)]
        example = (torch.empty(32, 3, size, size),)
        return Net(f"local filters {size} x {size}", nn.Sequential(*layers), example, mean_square)


def _graph_of(net: Net) -> Callable[[], Graph]:
    return lambda: capture(net.model, net.loss, net.example)[0]


def _bundled(name: str) -> Callable[[], Graph]:
    return lambda: captured(TaskSpec(f"cutset.models:{name}")).train


def _megatron(machines: int, elements: int, graph: Graph) -> tuple[str, float]:
    """Two all-reduces of the layer's output, each a fold and an expand (Shoeybi et al., 2019, section 3)."""
    return "Megatron", 4.0 * (machines - 1) * elements * 4


def _slices(machines: int, graph: Graph) -> tuple[str, float]:
    cluster = alike(machines)
    return "slices", _sent(graph, cluster, slices(graph, grid(cluster, range(machines), (machines,))))


def _tiles(machines: int, graph: Graph) -> tuple[str, float]:
    cluster = alike(machines)
    return "grid tiles", _sent(graph, cluster, tiles(graph, grid(cluster, range(machines), shapes(machines)[-1])))


def _sent(graph: Graph, cluster: Cluster, boxes: Mapping[str, Sequence[Placed]] | None) -> float:
    if boxes is None:
        return float("nan")
    return float(flow(graph, Cut(len(cluster), fused(len(cluster), together(graph, boxes)))).bytes_forward)
