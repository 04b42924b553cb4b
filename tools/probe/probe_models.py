"""The small models that `cutset probe` runs: one operator of every class at several sizes, and chains of operators.

Shapes: b batch, c channels, h heads, n and k features, t tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.tasks.locally_connected import LocallyConnected2d
from ...partition.capture.export import capture
from ...partition.dataflow.cut import Cut
from ...partition.dataflow.lowering import lower_cut
from ...partition.ir.graph import Graph
from ...runtime.worker.program import Program, programs

TINY, MIDDLE, LARGE = "tiny", "middle", "large"


class _Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class _Labelled(nn.Module):
    """Cross entropy of so many rows, whose labels are all zero."""

    labels: Tensor

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("labels", torch.zeros(rows, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(x, self.labels)


class _Repeated(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = F.relu(x)
        return x


@dataclass(frozen=True)
class OperatorSubject:
    """One operator to time. shape: of its input; size: which of the sizes of its class it is."""

    kind: str
    size: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The module's name in the model, without dots."""
        return f"{self.kind}_{self.size}"


def _make_linear(k: int, n: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(k, n)


def _make_conv(c: int, out: int, kernel: int) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(c, out, kernel)


def _make_local(c: int, out: int, size: int) -> Callable[[], nn.Module]:
    return lambda: LocallyConnected2d(c, out, size=(size, size), kernel=3)


def _make_norm(n: int) -> Callable[[], nn.Module]:
    return lambda: nn.LayerNorm(n)


# Classes as in partition/cost.py. The middle sizes are those of layers of small models, the large ones keep a core busy
# for some milliseconds.
SUBJECTS = (
    OperatorSubject("contraction", TINY, _make_linear(8, 8), (4, 8)),
    OperatorSubject("contraction", MIDDLE, _make_linear(256, 256), (64, 256)),
    OperatorSubject("contraction", LARGE, _make_linear(1024, 512), (128, 1024)),
    OperatorSubject("convolution", TINY, _make_conv(2, 2, 3), (2, 2, 6, 6)),
    OperatorSubject("convolution", MIDDLE, _make_conv(8, 16, 5), (32, 8, 16, 16)),
    OperatorSubject("convolution", LARGE, _make_conv(32, 32, 3), (64, 32, 20, 20)),
    OperatorSubject("local", TINY, _make_local(1, 2, 4), (2, 1, 4, 4)),
    OperatorSubject("local", MIDDLE, _make_local(8, 8, 8), (20, 8, 8, 8)),
    OperatorSubject("local", LARGE, _make_local(8, 16, 16), (64, 8, 16, 16)),
    OperatorSubject("attention", TINY, _Attention, (1, 1, 4, 8)),
    OperatorSubject("attention", MIDDLE, _Attention, (4, 4, 64, 32)),
    OperatorSubject("attention", LARGE, _Attention, (8, 4, 128, 64)),
    OperatorSubject("pooling", TINY, lambda: nn.MaxPool2d(2), (2, 2, 4, 4)),
    OperatorSubject("pooling", MIDDLE, lambda: nn.MaxPool2d(2), (32, 8, 16, 16)),
    OperatorSubject("pooling", LARGE, lambda: nn.MaxPool2d(2), (64, 32, 24, 24)),
    OperatorSubject("normalisation", TINY, _make_norm(8), (4, 8)),
    OperatorSubject("normalisation", MIDDLE, _make_norm(256), (128, 256)),
    OperatorSubject("normalisation", LARGE, _make_norm(1024), (1024, 1024)),
    OperatorSubject("loss", TINY, lambda: _Labelled(4), (4, 10)),
    OperatorSubject("loss", MIDDLE, lambda: _Labelled(128), (128, 100)),
    OperatorSubject("loss", LARGE, lambda: _Labelled(512), (512, 2000)),
    OperatorSubject("function", TINY, lambda: nn.GELU(), (4, 8)),
    OperatorSubject("function", MIDDLE, lambda: nn.GELU(), (128, 256)),
    OperatorSubject("function", LARGE, lambda: nn.GELU(), (1024, 1024)),
    OperatorSubject("elementwise", TINY, lambda: nn.ReLU(), (4, 8)),
    OperatorSubject("elementwise", MIDDLE, lambda: nn.ReLU(), (128, 512)),
    OperatorSubject("elementwise", LARGE, lambda: nn.ReLU(), (1024, 1024)),
    OperatorSubject("view", TINY, lambda: nn.Flatten(), (4, 2, 4)),
)
REPEATED = (1, 4, 16)  # tiny elementwise operators in one segment
CHAIN_LENGTH = 6  # exchanges of a chain
CHAIN_BYTES = (256, 64 << 10, 1 << 20)
MIXED_WIDTH = 64  # of a chain with several operators a hop, whose messages are as small as the first chain's


class _Gallery(nn.Module):
    """Applies each operator to an input of its own that needs a gradient, and sums the outputs."""

    def __init__(self, subjects: Mapping[str, Callable[[], nn.Module]]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.subjects = nn.ModuleDict({name: make() for name, make in subjects.items()})

    def forward(self, *inputs: Tensor) -> Tensor:
        parts = [module(x * self.scale).sum() for module, x in zip(self.subjects.values(), inputs, strict=True)]
        return torch.stack(parts).sum()


def make_gallery() -> tuple[Graph, list[dict[str, list[str]]]]:
    """Return the graph of all operators to time, and by size and subject the names of its operators."""
    subjects = {s.name: s.make for s in SUBJECTS} | {name_repetition(n): _make_repetition(n) for n in REPEATED}
    shapes = [s.shape for s in SUBJECTS] + [(4, 8)] * len(REPEATED)
    with torch.random.fork_rng():
        graph, _ = capture(_Gallery(subjects), _return_loss, [torch.zeros(shape) for shape in shapes])
    ops = {name: [op.name for op in graph.ops if op.module == f"subjects.{name}"] for name in subjects}
    groups = [[s.name for s in SUBJECTS if s.size == size] for size in (TINY, MIDDLE, LARGE)]
    groups[0] += [name_repetition(n) for n in REPEATED]
    return graph, [{name: ops[name] for name in group} for group in groups]


def name_repetition(count: int) -> str:
    return f"elementwise_times_{count}"


def _make_repetition(count: int) -> Callable[[], nn.Module]:
    return lambda: _Repeated(count)


def _return_loss(loss: Tensor) -> Tensor:
    return loss


class _Chain(nn.Module):
    """Applies hop after hop to each of its inputs."""

    def __init__(self, hop: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.hops = nn.ModuleList(hop() for _ in range(CHAIN_LENGTH))

    def forward(self, *inputs: Tensor) -> Tensor:
        several = [x * self.scale for x in inputs]
        for hop in self.hops:
            several = [hop(x) for x in several]
        total = several[0].sum()
        for x in several[1:]:
            total = total + x.sum()
        return total


def _make_mixed_hop() -> nn.Module:
    width = MIXED_WIDTH
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Softmax(-1), nn.ReLU())


@dataclass(frozen=True)
class ExchangeChain:
    """A chain of hops, on one machine and back and forth between two: CHAIN_LENGTH messages forward, as many back.

    ways: 2 where a second chain goes the other way at the same time, so that both machines send and receive at once;
    its end then goes to the first machine, one message more. width: elements of what travels; whole: the model's graph.
    """

    width: int
    ways: int
    whole: Graph
    parts: list[Program]
    alone: Program


def make_chains() -> list[ExchangeChain]:
    """Return a chain of the smallest messages, chains both ways of larger ones, and one of several operators a hop."""
    small, *large = CHAIN_BYTES
    return [
        make_chain(small // 4, nn.ReLU),
        *(make_chain(size // 4, nn.ReLU, ways=2) for size in large),
        make_chain(MIXED_WIDTH, _make_mixed_hop),
    ]


def make_chain(width: int, hop: Callable[[], nn.Module], *, ways: int = 1) -> ExchangeChain:
    """Return a chain with one `hop` between two messages."""
    with torch.random.fork_rng():
        graph, _ = capture(_Chain(hop), _return_loss, [torch.zeros(1, width)] * ways)
    swaps = {
        name: [(op.nest.box, machine)] for op, (name, machine) in zip(graph.ops, _place_alternately(graph), strict=True)
    }
    alone = {op.name: [(op.nest.box, 0)] for op in graph.ops}
    return ExchangeChain(
        width,
        ways,
        graph,
        programs(lower_cut(graph, Cut(2, swaps)), training=True),
        programs(lower_cut(graph, Cut(1, alone)), training=True)[0],
    )


def _place_alternately(graph: Graph) -> list[tuple[str, int]]:
    """Return each operator and its machine: the one that has its first input; the other one where a hop begins."""
    places: list[tuple[str, int]] = []
    home = {name: i for i, name in enumerate(t for t, info in graph.tensors.items() if info.kind == "input")}
    inside: dict[str, str] = {}
    for op in graph.ops:
        read, hop = op.inputs[0], ".".join(op.module.split(".")[:2])
        machine = 1 - home[read] if hop and hop != inside.get(read) else home[read]
        home.update(dict.fromkeys(op.outputs, machine))
        inside.update(dict.fromkeys(op.outputs, hop))
        places.append((op.name, machine))
    return places
