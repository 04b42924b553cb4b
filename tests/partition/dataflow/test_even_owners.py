"""Parameters that several machines read whole are divided evenly among them."""

from cutting import assert_same, run_cut, run_plain, subject
from example_graphs import chain

from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.cut import Cut, check_cut, fuse_boxes, one_machine_cut
from cutset.partition.dataflow.even_owners import spread_owners
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.graph import Graph
from cutset.partition.layouts.layout_search import mesh_of_machines
from cutset.partition.layouts.standard_cuts import boxes_of_layout, slice_layers
from cutset.partition.planner.planner import find_plan

MACHINES = 3


def data_parallel(graph: Graph) -> Cut:
    """Every operator along the batch, which is the first axis."""
    line, axis = mesh_of_machines(uniform_cluster(MACHINES), range(MACHINES), (MACHINES,)), graph.batch_axes[0]
    boxes = {}
    for op in graph.ops:
        at = [n for n, loop in enumerate(op.nest.loops) if loop.axis == axis and loop.kind != "fixed"]
        boxes[op.name] = boxes_of_layout(op, line, ((0, at[0]),) if at else ())
    return Cut(MACHINES, fuse_boxes(MACHINES, boxes))


def test_every_reader_owns_as_much() -> None:
    graph = chain(30, 60, 30, 30, batch=12)
    before = lower_cut(graph, data_parallel(graph))
    cut = spread_owners(before)
    assert cut is not None
    check_cut(graph, cut)
    for info in graph.parameters:
        assert [machine for _, machine in cut.owners[info.name]] == [0, 1, 2]
    assert lower_cut(graph, cut).bytes_forward == before.bytes_forward


def test_a_plan_by_batches_does_not_wait_for_the_one_owner_of_a_large_layer() -> None:
    result = find_plan(chain(1024, 64, 1024, batch=4096), uniform_cluster(4))
    spread = result.winner
    assert spread.name.endswith("even owners")
    before = next(plan for plan in result.plans if f"{plan.name}, even owners" == spread.name)
    assert spread.simulation.step_s < 0.9 * before.simulation.step_s
    assert {len(owners) for owners in spread.cut.owners.values()} == {4}


def test_what_one_machine_reads_stays_there() -> None:
    graph = chain(30, 60, 30, batch=12)
    assert spread_owners(lower_cut(graph, one_machine_cut(graph))) is None
    sliced = slice_layers(graph, mesh_of_machines(uniform_cluster(MACHINES), range(MACHINES), (MACHINES,)))
    assert sliced is not None
    assert spread_owners(lower_cut(graph, Cut(MACHINES, fuse_boxes(MACHINES, sliced)))) is None


def test_gradients_do_not_depend_on_who_owns_what() -> None:
    of = subject("mlp")
    cut = spread_owners(lower_cut(of.graph, data_parallel(of.graph)))
    assert cut is not None
    assert any(len(owners) == MACHINES for owners in cut.owners.values())
    assert_same(run_cut(of, cut, micros=2), run_plain(of, micros=2), rtol=1e-11)
