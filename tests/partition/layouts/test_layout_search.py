"""The best layouts on a mesh, where the best is known: Megatron's pairs, tiles of weights, tiles of images."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from example_graphs import chain, mlp_block
from random_nets import random_graph
from torch import nn

from cutset.models.tasks.locally_connected import LocallyConnected2d
from cutset.partition.capture.export import capture
from cutset.partition.cluster.cost_model import CostModel
from cutset.partition.cluster.machines import Cluster, Machine, uniform_cluster
from cutset.partition.dataflow.cut import Cut, check_cut, colocate_overwriters
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.simulator import simulate
from cutset.partition.ir.graph import Graph
from cutset.partition.layouts.device_mesh import DeviceMesh
from cutset.partition.layouts.layout_search import mesh_of_machines, mesh_shapes, search_layouts
from cutset.partition.layouts.resharding_cost import TrafficWeights
from cutset.partition.layouts.standard_cuts import tile_images
from cutset.partition.planner.plan import ScoredPlan
from cutset.partition.planner.planner import find_plan

FLOAT = 4


def balance(scored: ScoredPlan) -> float:
    """Work of the busiest machine, as a part of the mean."""
    flops = scored.simulation.flops
    return max(flops) * len(flops) / sum(flops)


def crossing(scored: ScoredPlan) -> int:
    """Bytes of values that cross the cut in a forward pass, without parameters."""
    return sum(edge.bytes for edge in scored.dataflow.edges)


TOKENS, WIDTH, HEADS, HIDDEN = 256, 128, 8, 512


@functools.cache
def transformer_layer() -> Graph:
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, norm_first=True, batch_first=True)
        example = torch.zeros(1, TOKENS, WIDTH)
    return capture(layer, lambda y: y.mean(), [example])[0]


def test_a_transformer_layer_sends_no_more_than_megatron() -> None:
    """Two all-reduces of Td elements, forward: 4 (k - 1) Td (Shoeybi et al., Megatron-LM, section 3)."""
    machines = 4
    winner = find_plan(transformer_layer(), uniform_cluster(machines), candidates="mesh").winner
    assert crossing(winner) <= 4 * (machines - 1) * TOKENS * WIDTH * FLOAT * 1.001
    assert balance(winner) <= 1.05


@pytest.mark.run
def test_a_square_net_on_sixteen_machines_is_cut_in_tiles_of_its_weights() -> None:
    """A 4 x 4 grid of weight tiles sends about 2 (sqrt(k) - 1) / (k - 1) of what slices send."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
    graph = capture(nn.Sequential(*layers), lambda y: y.mean(), [torch.zeros(32, 256)])[0]
    winner = find_plan(graph, uniform_cluster(16), candidates="mesh").winner
    slices = find_plan(graph, uniform_cluster(16), candidates="slices").winner
    assert winner.dataflow.bytes_forward <= 0.45 * slices.dataflow.bytes_forward
    assert winner.simulation.step_s <= slices.simulation.step_s
    assert balance(winner) <= 1.05


@functools.cache
def local_net() -> Graph:
    net = nn.Sequential(
        LocallyConnected2d(3, 8, size=(36, 36), kernel=5),
        nn.ReLU(),
        LocallyConnected2d(8, 8, size=(32, 32), kernel=5),
        nn.ReLU(),
        LocallyConnected2d(8, 8, size=(28, 28), kernel=5),
    )
    return capture(net, lambda y: y.mean(), [torch.zeros(8, 3, 36, 36)])[0]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("side", [2, 3, 4])
def test_a_locally_connected_net_is_tiled(side: int) -> None:
    graph, machines = local_net(), side * side
    winner = find_plan(graph, uniform_cluster(machines), candidates="mesh").winner
    drawn = tile_images(graph, mesh_of_machines(uniform_cluster(machines), range(machines), (side, side)))
    assert drawn is not None
    assert winner.dataflow.bytes_forward <= lower_cut(graph, Cut(machines, drawn)).bytes_forward
    assert balance(winner) <= 1.1  # 24 rows on three machines, and 28 and 32


def test_few_parameters_and_a_large_batch_are_cut_along_the_batch() -> None:
    """Data parallelism: all that is sent is the parameters, and the loss's parts."""
    graph = chain(8, 8, 8, 8, batch=4096)
    boxes, folds = search_layouts(
        graph, uniform_cluster(4), lambda op: mesh_of_machines(uniform_cluster(4), range(4), (4,))
    )
    assert {box[0] for op in graph.ops for box, _ in boxes[op.name]} == {(i, i + 1024) for i in range(0, 4096, 1024)}
    assert lower_cut(graph, Cut(4, boxes, folds)).bytes_forward == 3 * (3 * 8 * 8 + 1) * FLOAT


def test_hidden_units_are_cut_in_pairs() -> None:
    """Columns of the first product, rows of the second: the hidden units never travel."""
    graph = mlp_block(64, 32, 4096)
    boxes, folds = search_layouts(
        graph, uniform_cluster(2), lambda op: mesh_of_machines(uniform_cluster(2), range(2), (2,))
    )
    hidden = {name: {box[at] for box, _ in boxes[name]} for name, at in (("linear_1", 1), ("relu", 1), ("linear_2", 2))}
    assert set(map(frozenset, hidden.values())) == {frozenset({(0, 2048), (2048, 4096)})}
    assert sorted(machine for _, machine in folds["linear_2"]) == [0, 1], "each machine completes a share of the sum"


def meshes(count: int) -> list[DeviceMesh]:
    machines = tuple(Machine(f"m{i}", 50e9 * (1, 5, 3, 2)[i % 4]) for i in range(count))
    return [
        mesh_of_machines(cluster, range(count), shape)
        for cluster in (uniform_cluster(count), Cluster(machines))
        for shape in mesh_shapes(count)
    ]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [3, 4])
def test_all_layouts_of_random_nets_are_legal(seed: int, count: int) -> None:
    graph = random_graph(seed)
    for mesh in meshes(count):
        for weights in (
            TrafficWeights(),
            TrafficWeights(network=50.0, latency=0.0),
            TrafficWeights(network=0.0, latency=0.0),
        ):
            boxes, folds = search_layouts(graph, uniform_cluster(count), lambda op, mesh=mesh: mesh, weights=weights)  # type: ignore[misc]
            check_cut(graph, Cut(count, boxes, folds))


def test_what_a_byte_weighs_changes_what_is_sent() -> None:
    graph, cluster = transformer_layer(), uniform_cluster(4)
    sent = []
    for network in (0.0, 1.0, 100.0):
        boxes, folds = search_layouts(
            graph,
            cluster,
            lambda op: mesh_of_machines(cluster, range(4), (4,)),
            weights=TrafficWeights(network=network, latency=0.0),
        )
        sent.append(lower_cut(graph, Cut(4, boxes, folds)).bytes_forward)
    assert sent[0] > sent[1] >= sent[2]


def test_an_operator_may_have_a_mesh_of_its_own() -> None:
    """As a pinned one has: it is whole on its machine, and the others take that into account."""
    graph, cluster = mlp_block(64, 32, 512), uniform_cluster(3)
    line, last = mesh_of_machines(cluster, range(3), (3,)), mesh_of_machines(cluster, [2], (1,))
    boxes, folds = search_layouts(graph, cluster, lambda op: last if op.name == "linear_1" else line)
    check_cut(graph, Cut(3, boxes, folds))
    assert boxes["linear_1"] == [(graph.ops[2].nest.box, 2)]
    assert len(boxes["linear_2"]) == 3


def test_what_is_known_of_costs_changes_nothing() -> None:
    graph, cluster = mlp_block(64, 32, 512), uniform_cluster(2)
    costs = CostModel(graph.tensors)
    simulate(
        lower_cut(graph, Cut(1, {op.name: [(op.nest.box, 0)] for op in graph.ops})), uniform_cluster(1), costs=costs
    )
    line = mesh_of_machines(cluster, range(2), (2,))
    assert search_layouts(graph, cluster, lambda op: line, costs=costs) == search_layouts(
        graph, cluster, lambda op: line
    )


def test_operators_that_overwrite_a_buffer_stay_legal_together() -> None:
    norm = nn.BatchNorm1d(6)
    graph = capture(
        nn.Sequential(nn.Linear(5, 6), norm, nn.Linear(6, 6), norm), F.mse_loss, *[[torch.zeros(4, n)] for n in (5, 6)]
    )[0]
    line = mesh_of_machines(uniform_cluster(3), range(3), (3,))
    boxes, _ = search_layouts(graph, uniform_cluster(3), lambda op: line)
    check_cut(graph, Cut(3, colocate_overwriters(graph, boxes)))


def test_shapes_are_a_line_and_every_rectangle() -> None:
    assert mesh_shapes(1) == [(1,)]
    assert mesh_shapes(7) == [(7,)]
    assert mesh_shapes(12) == [(12,), (2, 6), (3, 4)]
    assert all(math.prod(shape) == 36 for shape in mesh_shapes(36))
