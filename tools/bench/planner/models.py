"""The nets that `cutset bench plan` plans: nets whose good cuts are known, the bundled tasks, and random nets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ....models.tasks.locally_connected import LocallyConnected2d
from ....partition.capture.export import capture
from ....partition.cluster.machines import Cluster, uniform_cluster
from ....partition.dataflow.cut import Cut, PlacedBox, colocate_overwriters, fuse_boxes
from ....partition.dataflow.lowering import lower_cut
from ....partition.ir.box import volume
from ....partition.ir.graph import Graph
from ....partition.layouts.layout_search import mesh_of_machines, mesh_shapes
from ....partition.layouts.standard_cuts import slice_layers, tile_images
from ....partition.operators.island import ISLAND
from ...task.capture_task import capture_task
from ...task.load_task import TaskSpec
from .random_nets import RandomNet, compute_mean_square, make_random_net

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
EXPERTS, CHOSEN = 8, 2


@dataclass(frozen=True)
class PlanSubject:
    """A graph to plan on a number of machines. known: the name of a good cut and the bytes that it sends forward."""

    name: str
    machines: int
    graph: Callable[[], Graph]
    known: Callable[[Graph], tuple[str, float]] | None = None


def list_subjects(*, seeds: int) -> Iterator[PlanSubject]:
    """Yield all subjects, the last ones random nets of so many seeds."""
    tokens, width = 2048, 1024
    for machines in (2, 4, 8):
        layer = make_transformer_layer(tokens, width)
        yield PlanSubject(
            layer.name, machines, defer_capture(layer), partial(_count_megatron_bytes, machines, tokens * width)
        )
    yield PlanSubject(
        "square net 6 x 2560", 16, defer_capture(make_square_net(6, 2560)), partial(_count_slice_bytes, 16)
    )
    for machines in (4, 9, 16):
        net = make_local_net(12)
        yield PlanSubject(net.name, machines, defer_capture(net), partial(_count_tile_bytes, machines))
    mixture = make_mixture(tokens, width)
    yield PlanSubject(mixture.name, 4, defer_capture(mixture), partial(_count_expert_bytes, 4, tokens * width))
    for name in BUNDLED:
        yield PlanSubject(name, 4, defer_bundled(name))
    for seed in range(seeds):
        yield PlanSubject(
            f"random {make_random_net(seed).name}", RANDOM_MACHINES[seed % 4], defer_capture(make_random_net(seed))
        )


def make_transformer_layer(tokens: int, width: int) -> RandomNet:
    """Return one transformer layer of 16 heads, norm first, without dropout."""
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, norm_first=True, batch_first=True)
        return RandomNet("transformer layer", layer, (torch.empty(1, tokens, width),), compute_mean_square)


def make_square_net(layers: int, width: int) -> RandomNet:
    """Return a net of fully connected layers of one width, with ReLUs."""
    with torch.device("meta"):
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        return RandomNet("square net", nn.Sequential(*parts), (torch.empty(32, width),), compute_mean_square)


class _Padded(nn.Module):
    """A layer of local filters that keeps the size of its image."""

    def __init__(self, before: int, after: int, size: int) -> None:
        super().__init__()
        self.filters = LocallyConnected2d(before, after, size=(size + 2, size + 2), kernel=3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.filters(nn.functional.pad(x, (1, 1, 1, 1))))


def make_local_net(size: int) -> RandomNet:
    """Return three layers of 3x3 local filters of 8 maps over an image."""
    with torch.device("meta"):
        layers = [_Padded(before, 8, size) for before in (3, 8, 8)]
        example = (torch.empty(32, 3, size, size),)
        return RandomNet(f"local filters {size} x {size}", nn.Sequential(*layers), example, compute_mean_square)


class _Mixture(nn.Module):
    """Experts, to CHOSEN of which each token goes, and what it was before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(CHOSEN, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens, places = torch.where(chosen == number)
            out.index_add_(0, tokens, expert(x[tokens]) * weights[tokens, places, None])
        return x + out


def make_mixture(tokens: int, width: int) -> RandomNet:
    """Return a mixture of experts, each a net of two layers, between two linear layers."""
    with torch.device("meta"):
        layers = (nn.Linear(width, width), _Mixture(width), nn.Linear(width, width))
        return RandomNet(
            "mixture of experts", nn.Sequential(*layers), (torch.empty(tokens, width),), compute_mean_square
        )


def defer_capture(net: RandomNet) -> Callable[[], Graph]:
    """Return what captures a net when it is called."""
    return lambda: capture(net.model, net.loss, net.example)[0]


def defer_bundled(name: str) -> Callable[[], Graph]:
    """Return what captures a bundled task when it is called."""
    return lambda: capture_task(TaskSpec(f"cutset.models:{name}")).train


def _count_megatron_bytes(machines: int, elements: int, graph: Graph) -> tuple[str, float]:
    """Return the bytes of two all-reduces of the layer's output, fold and expand (Shoeybi et al., 2019, section 3)."""
    return "Megatron", 4.0 * (machines - 1) * elements * 4


def _count_expert_bytes(machines: int, elements: int, graph: Graph) -> tuple[str, float]:
    """Return the bytes of experts that are placed by hand (GShard, section 3.2).

    Tokens travel to their experts and back, and no others; every machine reads the parameters around the experts for
    its part of the batch.
    """
    own = {name for op in graph.ops if op.target == ISLAND for name in op.inputs}
    around = sum(volume(info.box) * info.element_bytes for info in graph.parameters if info.name not in own)
    tokens = 2 * CHOSEN * elements * 4 * (machines - 1) / machines
    return "expert parallelism", tokens + around * (machines - 1)


def _count_slice_bytes(machines: int, graph: Graph) -> tuple[str, float]:
    cluster = uniform_cluster(machines)
    return "slices", _count_bytes(
        graph, cluster, slice_layers(graph, mesh_of_machines(cluster, range(machines), (machines,)))
    )


def _count_tile_bytes(machines: int, graph: Graph) -> tuple[str, float]:
    cluster = uniform_cluster(machines)
    return "grid tiles", _count_bytes(
        graph, cluster, tile_images(graph, mesh_of_machines(cluster, range(machines), mesh_shapes(machines)[-1]))
    )


def _count_bytes(graph: Graph, cluster: Cluster, boxes: Mapping[str, Sequence[PlacedBox]] | None) -> float:
    if boxes is None:
        return float("nan")
    return float(
        lower_cut(graph, Cut(len(cluster), fuse_boxes(len(cluster), colocate_overwriters(graph, boxes)))).bytes_forward
    )
