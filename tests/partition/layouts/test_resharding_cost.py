"""What a pair of layouts sends, as the search estimates it and as the cut is spelled out: the same, for every pair."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from example_graphs import chain, conv_line
from marking import with_slow
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.cluster.machines import Cluster, Machine, NetworkLink, SharedCard, uniform_cluster
from cutset.partition.dataflow.cut import Cut, PlacedBox, check_cut
from cutset.partition.dataflow.dataflow import RUN, Dataflow
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.graph import Graph, Op, Operand, TensorInfo
from cutset.partition.layouts.layout_search import mesh_of_machines
from cutset.partition.layouts.layout_space import LayoutSpace, input_regions, layout_space, output_regions
from cutset.partition.layouts.resharding_cost import EQUAL_WEIGHTS, MIN_MESSAGE_S, LayoutTraffic, TrafficWeights


class After(nn.Module):
    """A linear layer and what is done with its output."""

    def __init__(self, function) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.linear, self.function = nn.Linear(8, 12), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An operator with three outputs, of two ranks, all read."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out, (hidden, _) = self.lstm(x)
        return self.head(out) * hidden.mean()


def images(*layers: nn.Module, channels: int = 2, rows: int = 9, columns: int = 8) -> Graph:
    return capture(nn.Sequential(*layers), lambda y: y.mean(), [torch.zeros(2, channels, rows, columns)])[0]


def after(function) -> Graph:  # type: ignore[no-untyped-def]
    return capture(After(function), lambda y: y.mean(), [torch.zeros(4, 8)])[0]


GRAPHS: dict[str, Callable[[], Graph]] = {
    "chain of linears": lambda: chain(8, 12, 16, batch=4),
    "conv line": lambda: conv_line(16, batch=4),
    "elementwise": lambda: after(lambda y: torch.tanh(torch.relu(y))),
    "strided slice": lambda: after(lambda y: y[1:, ::2] * 2),
    "cat": lambda: after(lambda y: torch.cat([y.exp(), y], 1)),
    "roll": lambda: after(lambda y: torch.roll(y, 3, 1) * 2),
    "stride": lambda: images(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.MaxPool2d(3, 2, 1), rows=17, columns=16),
    "pooling with gaps": lambda: images(nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d((3, 1), (1, 3))),
    "twice as large": lambda: images(nn.Conv2d(2, 4, 3, padding=1), nn.Upsample(scale_factor=2)),
    "several outputs": lambda: capture(Recurrent(), lambda y: y.mean(), [torch.zeros(4, 3, 6)])[0],
}
SPEEDS = {"alike": (1.0,) * 6, "unlike": (1.0, 5.0, 3.0, 2.0, 7.0, 1.0)}


def plain(speeds: Sequence[float], count: int) -> Cluster:
    """A byte a second, no latency: seconds are bytes."""
    return Cluster(tuple(Machine(f"m{i}", speed) for i, speed in enumerate(speeds[:count])), 1.0, 0.0)


def pairs(graph: Graph) -> Iterator[tuple[Op, Op, Operand, TensorInfo]]:
    """Maker, reader, and the tensor between them, where nobody else reads it."""
    producers, ops = graph.producers, {op.name: op for op in graph.ops}
    readers = Counter(operand.tensor for op in graph.ops for operand in op.nest.operands)
    for op in graph.ops:
        for operand in op.nest.operands:
            if operand.tensor in producers and readers[operand.tensor] == 1:
                yield ops[producers[operand.tensor]], op, operand, graph.tensors[operand.tensor]


def spelled(
    graph: Graph, count: int, boxes: Mapping[str, Sequence[PlacedBox]], folds: Mapping[str, list[PlacedBox]]
) -> Dataflow:
    whole = {op.name: [(op.nest.box, 0)] for op in graph.ops}
    cut = Cut(count, {**whole, **boxes}, folds)
    check_cut(graph, cut)
    return lower_cut(graph, cut)


def carried(found: Dataflow, name: str, maker: Op, makers: LayoutSpace) -> float:
    """Bytes until the busiest machine has all parts of its sums, and until it then has all that it reads.

    The senders of each of the two send on average what is sent, divided among those that have it.
    """
    folded = name == maker.outputs[0] and maker.name in found.cut.folds
    received: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    for piece in found.pieces:
        if piece.tensor == name and piece.origin >= 0:
            source = found.pieces[piece.origin]
            part = folded and found.instructions[source.maker].kind == RUN
            received[part][piece.machine] += found.piece_bytes(piece.index)
    owners = {p.machine for p in found.pieces if p.tensor == name and p.origin < 0}
    if folded:
        owners = {machine for _, machine in found.cut.folds[maker.name]}
    senders = {True: int(makers.active.sum()), False: len(owners)}
    return sum(max(max(at.values()), at.total() / senders[part]) for part, at in received.items() if at)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(("shape", "speeds"), with_slow([((2, 2), "unlike")], [((3,), "alike")]))
@pytest.mark.parametrize("name", GRAPHS)
def test_the_estimate_is_what_the_spelled_out_cut_sends(name: str, shape: tuple[int, ...], speeds: str) -> None:
    graph, count = GRAPHS[name](), math.prod(shape)
    cluster = plain(SPEEDS[speeds], count)
    compare_with_spelled_cuts(graph, cluster, shape, carried)


def compare_with_spelled_cuts(
    graph: Graph,
    cluster: Cluster,
    shape: tuple[int, ...],
    measure: Callable[[Dataflow, str, Op, LayoutSpace], float],
) -> None:
    """Compare the estimate of every pair of layouts with what `measure` finds in the cut, by its best fold."""
    count = len(cluster)
    mesh, traffic = mesh_of_machines(cluster, range(count), shape), LayoutTraffic(cluster, EQUAL_WEIGHTS)
    compared = 0
    for maker, reader, operand, info in pairs(graph):
        makers, readers = (layout_space(op, mesh, graph.tensors[op.outputs[0]]) for op in (maker, reader))
        estimates = traffic.between(makers, readers, operand, info) / (2 if info.gradient else 1)
        assert estimates.shape == (len(makers.layouts), len(readers.layouts))
        for p, q in product(range(len(makers.layouts)), range(len(readers.layouts))):
            boxes = {maker.name: makers.boxes_of(p), reader.name: readers.boxes_of(q)}
            ways = [makers.complete[p].boxes_of(0)] if makers.parts[p] > 1 else []
            need = input_regions(readers[q], operand, info)
            if ways and need.once(info)[0]:
                ways.append(need.boxes_of(0))
            folds = [{maker.name: way} for way in ways] or [{}]
            found = min(measure(spelled(graph, count, boxes, fold), info.name, maker, makers[p]) for fold in folds)
            expected = pytest.approx(found)
            if len(traffic.hosts) > 1:  # messages take time there, at most those of a sum and of its readers
                expected = pytest.approx(found, abs=MIN_MESSAGE_S * 2 * count)
            assert estimates[p, q] == expected, (maker.name, makers.layouts[p], readers.layouts[q])
            compared += 1
    assert compared > 5


@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_shared_parameters_are_those_that_are_sent_before_the_step(shape: tuple[int, ...]) -> None:
    """All that is sent, divided among the machines that read it."""
    graph, count = conv_line(16, batch=4), math.prod(shape)
    cluster = plain(SPEEDS["alike"], count)
    op = graph.ops[0]
    of = layout_space(op, mesh_of_machines(cluster, range(count), shape), graph.tensors[op.outputs[0]])
    (weight,) = [o for o in op.nest.operands if graph.tensors[o.tensor].kind == "parameter"]
    seconds = LayoutTraffic(cluster, EQUAL_WEIGHTS).send_state(of, weight, graph.tensors[weight.tensor])
    for p in range(len(of.layouts)):
        found = spelled(graph, count, {op.name: of.boxes_of(p)}, {})
        sent = sum(found.piece_bytes(copy) for edge in found.shared_edges for _, copy in edge.pairs)
        assert seconds[p] * count / 2 == sent == (count - 1) * 3 * 4


JOINED: dict[str, Callable[[], Graph]] = {
    "batch norm": lambda: images(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), rows=8),
    "softmax": lambda: after(lambda y: y.softmax(1)),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
@pytest.mark.parametrize("name", JOINED)
def test_what_parts_tell_each_other_is_what_the_spelled_out_cut_sends(name: str, shape: tuple[int, ...]) -> None:
    graph, cluster = JOINED[name](), plain(SPEEDS["alike"], 4)
    op = next(op for op in graph.ops if op.nest.non_additive)
    of = layout_space(op, mesh_of_machines(cluster, range(4), shape), graph.tensors[op.outputs[0]])
    seconds = LayoutTraffic(cluster, EQUAL_WEIGHTS).exchange_summaries(of, graph.tensors[op.outputs[0]])
    for p in range(len(of.layouts)):
        found = spelled(graph, 4, {op.name: of.boxes_of(p)}, {})
        told = [x for x in found.pieces if x.tensor.startswith(f"{op.name}.parts") and x.origin >= 0]
        received = Counter[int]()
        for piece in told:
            received[piece.machine] += found.piece_bytes(piece.index)
        assert seconds[p] / 2 == max(received.values(), default=0)
    assert (seconds > 0).any()


def test_a_sum_is_not_added_up_by_readers_of_which_some_point_has_none() -> None:
    """Rows overlap and columns have gaps: as many points are read as there are, and yet not each of them once."""
    graph = images(nn.Conv2d(4, 1, 3, padding=1), nn.MaxPool2d((3, 1), (1, 2)), channels=4, rows=6, columns=8)
    conv, pool, _ = graph.ops
    mesh = mesh_of_machines(uniform_cluster(4), range(4), (2, 2))
    readers = layout_space(pool, mesh, graph.tensors[pool.outputs[0]])
    info, operand = graph.tensors[conv.outputs[0]], pool.nest.operands[0]
    need = input_regions(readers, operand, info)
    full = [p for p in range(len(readers.layouts)) if need.points[p].sum() == math.prod(info.extents)]
    assert any(not need.once(info)[p] for p in full), "the example has lost its point"
    makers = layout_space(conv, mesh, info)
    direct = LayoutTraffic(uniform_cluster(4), EQUAL_WEIGHTS).direct(makers, need, info)
    assert all((direct[:, p] < math.inf).all() == need.once(info)[p] for p in range(len(readers.layouts)))


def test_outputs_of_several_are_whole_on_the_first_machine_of_the_mesh() -> None:
    graph = GRAPHS["several outputs"]()
    op = next(op for op in graph.ops if len(op.outputs) > 1)
    of = layout_space(op, mesh_of_machines(uniform_cluster(3), [2, 1], (2,)), graph.tensors[op.outputs[0]])
    for name in op.outputs:
        info = graph.tensors[name]
        assert output_regions(of, info).boxes_of(0) == [(info.box, 2)]


def test_weights_count_bytes_and_messages_apart() -> None:
    graph = chain(8, 12, 16, batch=4)
    maker, reader, _ = graph.ops
    cluster = Cluster(uniform_cluster(2).machines, bandwidth=10.0, latency_s=3.0)
    mesh = mesh_of_machines(cluster, range(2), (2,))
    info, operand = graph.tensors[maker.outputs[0]], reader.nest.operands[0]
    ends = [layout_space(op, mesh, graph.tensors[op.outputs[0]]) for op in (maker, reader)]
    p, q = (of.layouts.index(((0, 1),)) for of in ends)  # slices: each machine lacks half of the state
    half = 4 * 12 * 4 / 2 / 10.0
    for weights, expected in (
        (EQUAL_WEIGHTS, half + 3),
        (TrafficWeights(4.0, 0.0), 4 * half),
        (TrafficWeights(0.0, 2.0), 6.0),
    ):
        found = LayoutTraffic(cluster, weights).between(*ends, operand, info)
        assert found[p, q] == pytest.approx(2 * expected)
        assert found[ends[0].layouts.index(((0, 0),)), ends[1].layouts.index(((0, 0),))] == 0


def test_a_slow_card_takes_longer() -> None:
    machines = (Machine("quick"), Machine("slow", bandwidth_in=2.0, latency_s=5.0))
    assert slices_seconds(Cluster(machines, 10.0, 0.0)) == pytest.approx(2 * (4 * 12 * 4 / 2 / 2.0 + 5.0))


def test_links_take_the_place_of_cards() -> None:
    machines, links = uniform_cluster(2).machines, (NetworkLink(0, 1, 40.0, 1.0), NetworkLink(1, 0, 20.0, 0.5))
    assert slices_seconds(Cluster(machines, 10.0, 5.0, links)) == pytest.approx(2 * (4 * 12 * 4 / 2 / 20.0 + 1.0))


def slices_seconds(cluster: Cluster) -> float:
    """Seconds between two layers that are cut along their units: each machine lacks half of what it reads."""
    graph = chain(8, 12, 16, batch=4)
    maker, reader, _ = graph.ops
    mesh = mesh_of_machines(cluster, range(2), (2,))
    ends = [layout_space(op, mesh, graph.tensors[op.outputs[0]]) for op in (maker, reader)]
    p, q = (of.layouts.index(((0, 1),)) for of in ends)
    found = LayoutTraffic(cluster, EQUAL_WEIGHTS).between(
        *ends, reader.nest.operands[0], graph.tensors[maker.outputs[0]]
    )
    return float(found[p, q])


# Several hosts -----------------------------------------------------------------------------------------------------

INSIDE = 8.0  # times as fast as between hosts


def two_hosts(count: int) -> Cluster:
    """Half of the machines on each of two hosts; a byte a second between them."""
    half = [(a, b) for a in range(count) for b in range(count) if a != b and a // (count // 2) == b // (count // 2)]
    return Cluster(plain(SPEEDS["alike"], count).machines, 1.0, 0.0, tuple(NetworkLink(*p, INSIDE, 0.0) for p in half))


def carried_by_hosts(cluster: Cluster, found: Dataflow, name: str, maker: Op, makers: LayoutSpace) -> float:
    """Seconds until the busiest card has sent and received, of parts of sums and then of what is read.

    What crosses inside hosts and between them does so at the same time.
    """
    folded = name == maker.outputs[0] and maker.name in found.cut.folds
    cards: dict[tuple[bool, bool], Counter[tuple[str, int]]] = {}
    for piece in found.pieces:
        if piece.tensor == name and piece.origin >= 0:
            source = found.pieces[piece.origin]
            part = folded and found.instructions[source.maker].kind == RUN
            near = cluster.link(source.machine, piece.machine) is not None
            card = cards.setdefault((part, near), Counter())
            for way, machine in (("sent", source.machine), ("received", piece.machine)):
                shared = None if near else cluster.shared_card(machine)
                card[way, machine if shared is None else shared.machines[0]] += found.piece_bytes(piece.index)
    seconds = {key: max(card.values()) / (INSIDE if key[1] else 1.0) for key, card in cards.items()}
    return sum(max(seconds.get((part, near), 0.0) for near in (True, False)) for part in (True, False))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("cards", [(), (SharedCard("left", (0, 1)), SharedCard("right", (2, 3)))])
@pytest.mark.parametrize("shape", [(2, 2), (4,)])
@pytest.mark.parametrize("name", GRAPHS)
def test_on_two_hosts_too_the_estimate_is_what_the_spelled_out_cut_sends(
    name: str, shape: tuple[int, ...], cards: tuple[SharedCard, ...]
) -> None:
    graph, count = GRAPHS[name](), math.prod(shape)
    cluster = replace(two_hosts(count), cards=cards)
    assert [host.tolist() for host in LayoutTraffic(cluster, EQUAL_WEIGHTS).hosts] == [[0, 1], [2, 3]]
    compare_with_spelled_cuts(graph, cluster, shape, partial(carried_by_hosts, cluster))


def test_shared_parameters_cross_between_hosts_as_often_as_their_readers_are_apart() -> None:
    graph, cluster = conv_line(16, batch=4), two_hosts(4)
    op = graph.ops[0]
    of = layout_space(op, mesh_of_machines(cluster, range(4), (2, 2)), graph.tensors[op.outputs[0]])
    (weight,) = [o for o in op.nest.operands if graph.tensors[o.tensor].kind == "parameter"]
    seconds = LayoutTraffic(cluster, EQUAL_WEIGHTS).send_state(of, weight, graph.tensors[weight.tensor])
    far = 2 * 3 * 4  # bytes: of three copies, two go to the other host, wherever the owner is
    assert seconds == pytest.approx([2 * far / 4] * len(of.layouts))
    shared = replace(cluster, cards=(SharedCard("left", (0, 1)), SharedCard("right", (2, 3))))
    at_cards = LayoutTraffic(shared, EQUAL_WEIGHTS).send_state(of, weight, graph.tensors[weight.tensor])
    assert at_cards == pytest.approx(2 * seconds), "two machines send by each"
    lone = replace(cluster, cards=(SharedCard("left", (0, 1)),))
    of_two = layout_space(op, mesh_of_machines(cluster, (1, 2), (2,)), graph.tensors[op.outputs[0]])
    apart = [
        LayoutTraffic(c, EQUAL_WEIGHTS).send_state(of_two, weight, graph.tensors[weight.tensor])
        for c in (cluster, lone)
    ]
    assert apart[0] == pytest.approx(apart[1]), "one of the two is at the shared card, which it has for itself"


def test_summaries_cross_between_hosts_only_along_the_dimension_that_does() -> None:
    graph, cluster = JOINED["softmax"](), two_hosts(4)
    op = next(op for op in graph.ops if op.nest.non_additive)
    of = layout_space(op, mesh_of_machines(cluster, range(4), (2, 2)), graph.tensors[op.outputs[0]])
    seconds = LayoutTraffic(cluster, EQUAL_WEIGHTS).exchange_summaries(of, graph.tensors[op.outputs[0]])
    loop = op.nest.non_additive[0]
    by_cut = {tuple(d for d, i in layout if i == loop): s for layout, s in zip(of.layouts, seconds, strict=True)}
    assert by_cut[()] == 0
    assert by_cut[0,] == pytest.approx(INSIDE * by_cut[1,])
    assert by_cut[0,] > 0
