"""What crosses a cut, on cases that can be counted by hand."""

import itertools

import pytest
from example_graphs import chain, conv_line, mlp_block

from cutset.partition.dataflow.cut import Cut, PlacedBox, one_machine_cut
from cutset.partition.dataflow.dataflow import Dataflow
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.box import split_evenly
from cutset.partition.ir.graph import Graph

FLOAT = 4


def cut_along(graph: Graph, loops: dict[str, int], machines: int, *, home: int = 0) -> Cut:
    """Cut the named operators evenly along one loop each; the others whole on machine `home`."""
    boxes: dict[str, list[PlacedBox]] = {}
    for op in graph.ops:
        if op.name not in loops:
            boxes[op.name] = [(op.nest.box, home)]
            continue
        at = loops[op.name]
        parts = split_evenly(op.nest.loops[at].size, machines)
        boxes[op.name] = [((*op.nest.box[:at], part, *op.nest.box[at + 1 :]), m) for m, part in enumerate(parts)]
    return Cut(machines, boxes)


def bytes_of(spelled: Dataflow, tensor: str) -> int:
    edges = (*spelled.edges, *spelled.shared_edges)
    copies = [copy for edge in edges for _, copy in edge.pairs]
    return sum(spelled.piece_bytes(copy) for copy in copies if spelled.pieces[copy].tensor == tensor)


def test_one_machine_sends_nothing_and_has_one_segment() -> None:
    spelled = lower_cut(chain(8, 8, 8), one_machine_cut(chain(8, 8, 8)))
    assert (spelled.edges, spelled.shared_edges, spelled.bytes_forward) == ([], [], 0)
    assert {i.stage for i in spelled.instructions} == {0}


@pytest.mark.parametrize("machines", [2, 3, 4])
def test_slices_send_each_state_to_each_other_machine_once(machines: int) -> None:
    graph = chain(12, 12, 12, batch=4)
    spelled = lower_cut(graph, cut_along(graph, {"linear": 1, "linear_1": 1}, machines))
    assert bytes_of(spelled, "linear") == (machines - 1) * 4 * 12 * FLOAT
    assert bytes_of(spelled, "linear_1") == 4 * 12 * FLOAT * (machines - 1) // machines  # to the loss, on machine 0
    assert spelled.shared_edges == []


def test_halos_of_a_tiled_convolution_are_exact() -> None:
    graph = conv_line(12, batch=2)
    spelled = lower_cut(graph, cut_along(graph, {"conv1d": 1, "conv1d_1": 1, "mean": 1}, 3))
    # Two inner borders, one element over each, in both directions, for both samples.
    assert bytes_of(spelled, "conv1d") == 2 * 2 * 2 * FLOAT
    # The loss's partial sums of machines 1 and 2.
    assert bytes_of(spelled, "mean") == 2 * FLOAT


def test_a_parameter_that_all_read_has_one_owner_and_is_sent_to_the_others() -> None:
    graph = conv_line(12)  # sizes of one (batch, channels) are no loops
    spelled = lower_cut(graph, cut_along(graph, {"conv1d": 0, "conv1d_1": 0, "mean": 0}, 3))
    shared = sum(edge.bytes for edge in spelled.shared_edges)
    assert shared == 2 * (3 - 1) * 3 * FLOAT
    assert all(len(spelled.cut.owners[p.name]) == 1 for p in graph.parameters)
    owners = {spelled.cut.owners[p.name][0][1] for p in graph.parameters}
    assert len(owners) == 2, "the second parameter goes to another machine, which owned less"


@pytest.mark.parametrize("machines", [2, 4])
def test_column_then_row_parallel_has_the_traffic_of_megatron(machines: int) -> None:
    tokens, width, hidden = 8, 4, 16
    graph = mlp_block(tokens, width, hidden)
    names = {op.name: op for op in graph.ops}
    along = {"linear_1": 1, "relu": 1, "linear_2": 2}  # hidden units: columns of up, rows of down
    along |= dict.fromkeys(("linear", "layer_norm", "add", "mean"), 0)  # light operators by tokens
    assert names["linear_2"].nest.loops[2].kind == "reduction"
    spelled = lower_cut(graph, cut_along(graph, along, machines))
    expected = (machines - 1) * tokens * width * FLOAT
    assert bytes_of(spelled, "layer_norm") == expected  # expand: every machine needs all tokens
    assert bytes_of(spelled, "linear_2") == expected  # fold: each token's sum at its owner


def test_partial_sums_of_one_machine_are_added_before_they_are_sent() -> None:
    graph = chain(8, 6, batch=2)
    op = graph.ops[0]
    quarters = split_evenly(8, 4)
    boxes = [((*op.nest.box[:2], part), (0, 1, 1, 1)[i]) for i, part in enumerate(quarters)]
    spelled = lower_cut(graph, Cut(2, {op.name: boxes, graph.ops[1].name: [(graph.ops[1].nest.box, 0)]}))
    assert bytes_of(spelled, "linear") == 2 * 6 * FLOAT
    assert [i.machine for i in spelled.instructions if i.kind == "sum"] == [1, 0]


def test_stages_count_the_exchanges_before_an_instruction() -> None:
    graph = chain(4, 4, 4, 4)
    machines = {"linear": 0, "linear_1": 1, "linear_2": 0, "cross_entropy_loss": 1}
    spelled = lower_cut(graph, Cut(2, {op.name: [(op.nest.box, machines[op.name])] for op in graph.ops}))
    assert {i.op: i.stage for i in spelled.instructions} == {
        "linear": 0,
        "linear_1": 1,
        "linear_2": 2,
        "cross_entropy_loss": 3,
    }
    assert [(e.source, e.stage, e.target) for e in spelled.edges] == [(0, 0, 1), (1, 1, 0), (0, 2, 1)]


def test_all_that_a_segment_sends_to_a_machine_is_one_edge() -> None:
    graph = chain(12, 12, 12)
    spelled = lower_cut(graph, cut_along(graph, {"linear": 1, "linear_1": 1}, 3))
    keys = [(e.source, e.stage, e.target) for e in spelled.edges]
    assert len(keys) == len(set(keys))


def test_every_read_is_covered_by_pieces_at_hand() -> None:
    graph = conv_line(12, batch=2)
    spelled = lower_cut(graph, cut_along(graph, {"conv1d": 1, "conv1d_1": 1}, 4))
    for instruction, read in itertools.chain.from_iterable(
        [(i, r) for r in i.reads] for i in spelled.instructions if i.kind == "run"
    ):
        assert all(spelled.pieces[s].machine == instruction.machine for s in read.sources)


@pytest.mark.parametrize("machines", [1, 2, 3])
@pytest.mark.parametrize("loop", [0, 1])
def test_what_a_machine_has_itself_is_found_as_by_the_general_search(
    monkeypatch: pytest.MonkeyPatch, machines: int, loop: int
) -> None:
    graphs = [(chain(12, 12, 12, batch=4), ("linear", "linear_1")), (conv_line(12, batch=4), ("conv1d", "conv1d_1"))]
    cuts = [(graph, cut_along(graph, dict.fromkeys(names, loop), machines)) for graph, names in graphs]
    found = [lower_cut(graph, cut) for graph, cut in cuts]
    monkeypatch.setattr("cutset.partition.dataflow.lowering._find_holder", lambda boxes, inner: None)
    for one, (graph, cut) in zip(found, cuts, strict=True):
        other = lower_cut(graph, cut)
        assert (one.pieces, one.instructions, one.cut) == (other.pieces, other.instructions, other.cut)
        assert (one.edges, one.shared_edges, one.results) == (other.edges, other.shared_edges, other.results)
