"""Cuts along joined loops become two operators: parts tell, and what all told is known to each."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cutting import Subject, assert_same, run_cut, run_plain
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from zoo import Case

from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.cut import Cut, assign_fold_owners, check_cut, one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.reduction_split import _summary_slots, split_reductions
from cutset.partition.ir.box import intersect
from cutset.partition.ir.graph import Graph
from cutset.partition.operators.sharding.sharding_rule import SUMMARY_SUFFIX
from cutset.partition.planner.planner import find_plan

CLASSES = 12


class Net(nn.Module):
    """A norm over batch and space, a maximum over space, and classes."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.wide(x)).amax((2, 3)))
        return y


def batch(side: int = 8) -> Data:
    return Data((torch.randn(4, 3, side, side),), (torch.randint(0, CLASSES, (4,)),))


def graph(side: int = 8, loss: Callable[..., Tensor] = F.cross_entropy) -> Graph:
    data = batch(side)
    return capture(Net().train(), loss, data.inputs, data.targets)[0]


def halved(of: Graph, **loops: int) -> Cut:
    """Operators cut in two along one loop each; the others whole on the first machine."""
    boxes = {op.name: [(op.nest.box, 0)] for op in of.ops}
    for name, loop in loops.items():
        (whole, _), size = boxes[name][0], boxes[name][0][0][loop][1]
        half = [(0, size // 2), (size // 2, size)]
        boxes[name] = [((*whole[:loop], half[m], *whole[loop + 1 :]), m) for m in range(2)]
    return Cut(2, boxes)


def test_nothing_changes_where_no_joined_loop_is_cut() -> None:
    of = graph()
    cut = halved(of, batch_norm=1)
    assert split_reductions(of, cut) == (of, cut)
    assert lower_cut(of, cut).graph is of


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("loops", [{"batch_norm": 0}, {"batch_norm": 2}, {"amax": 2}, {"cross_entropy_loss": 1}])
def test_a_cut_operator_is_its_parts_and_what_follows(loops: dict[str, int]) -> None:
    of = graph()
    (name,) = loops
    cut = assign_fold_owners(of, halved(of, **loops))
    check_cut(of, cut)
    runs, _ = split_reductions(of, cut)
    assert [op.name for op in runs.ops if op.name.startswith(name)] == [f"{name}{SUMMARY_SUFFIX}", name]
    parts = runs.tensors[runs.ops[[op.name for op in runs.ops].index(f"{name}{SUMMARY_SUFFIX}")].outputs[0]]
    assert parts.shape[0] == 2
    assert of.digest == graph().digest


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("loops", [{"batch_norm": 0}, {"batch_norm": 3}, {"amax": 2}, {"cross_entropy_loss": 1}])
def test_it_trains_like_plain_torch_and_keeps_the_running_statistics(loops: dict[str, int]) -> None:
    of = Subject(Case(Net, batch, F.cross_entropy), torch.float64)
    assert_same(run_cut(of, halved(of.graph, **loops)), run_plain(of), rtol=1e-11)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.BatchNorm1d(8),
    "without scale and shift": lambda: nn.BatchNorm1d(8, affine=False),
    "without running statistics": lambda: nn.BatchNorm1d(8, track_running_stats=False),
    "neither": lambda: nn.BatchNorm1d(8, affine=False, track_running_stats=False),
    "scale alone": lambda: ScaledNorm(),
}


class ScaledNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, self.weight, None, True)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_all_kinds(name: str) -> None:
    data = Data((torch.randn(6, 8),), (torch.randint(0, CLASSES, (6,)),))
    make = lambda: nn.Sequential(nn.Linear(8, 8), NORMS[name](), nn.Linear(8, CLASSES))  # noqa: E731
    of = Subject(Case(make, lambda: data, F.cross_entropy), torch.float64)
    for loops in ({"batch_norm": 0}, {"batch_norm": 0, "cross_entropy_loss": 1}):
        assert_same(run_cut(of, halved(of.graph, **loops)), run_plain(of), rtol=1e-11)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("label", [-1, CLASSES])
@pytest.mark.parametrize("loss", [F.cross_entropy, lambda y, t: F.nll_loss(y.log_softmax(1), t)])
@pytest.mark.parametrize("loop", [0, 1])
def test_a_label_that_is_no_class_is_named(loss: Callable[..., Tensor], label: int, loop: int) -> None:
    of = Subject(Case(Net, batch, loss), torch.float64)
    name = of.graph.producers[of.graph.results[0]]
    of.batch.targets[0][2] = label
    with pytest.raises(Exception, match=f"Target {label} is out of bounds"):
        run_cut(of, halved(of.graph, **{name: loop}))


def test_statistics_do_not_grow_with_the_image() -> None:
    sizes = []
    for side in (8, 32):
        of = graph(side)
        spelled_out = lower_cut(of, halved(of, conv2d=2, batch_norm=2, amax=2))
        told = [p for p in spelled_out.pieces if p.origin >= 0 and p.tensor.startswith("batch_norm.parts")]
        sizes.append(sum(spelled_out.piece_bytes(p.index) for p in told))
    assert sizes == [2 * 3 * 8 * 4] * 2  # to and fro: count, mean, squares of 8 channels


def test_running_statistics_are_kept_by_one_machine() -> None:
    of = graph()
    owned = lower_cut(of, halved(of, conv2d=0, batch_norm=0)).cut.owners
    assert [machine for _, machine in owned["norm.running_mean"]] == [0]


Boxes = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(0, 5), st.integers(1, 3)).map(
        lambda sides: ((sides[0], sides[0] + sides[1]), (sides[2], sides[2] + sides[3]))
    ),
    max_size=8,
)


@given(boxes=Boxes)
def test_boxes_that_meet_have_slots_of_their_own(boxes: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    slots = _summary_slots(boxes)
    for i in range(len(boxes)):
        assert all(slots[i] != slots[j] for j in range(i) if intersect(boxes[i], boxes[j]) is not None)
    assert all(slot < len(boxes) for slot in slots)


@pytest.mark.run
def test_the_plan_of_a_net_with_norms_cuts_images_and_not_channels() -> None:
    """Two machines: with halves of the images only halos, weights and statistics travel."""
    net = nn.Sequential(
        *(
            layer
            for i in range(4)
            for layer in (nn.Conv2d(16 if i else 3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        )
    )
    of = capture(net.train(), F.mse_loss, (torch.zeros(32, 3, 64, 64),), (torch.zeros(32, 16, 64, 64),))[0]
    result = find_plan(of, uniform_cluster(2))
    norms = [op.name for op in of.ops if op.sharding_rule == "aten.batch_norm"]
    for name in norms:
        for box, _ in result.winner.dataflow.cut.boxes[name]:
            assert box[1] == (0, 16)
    assert result.winner.simulation.step_s < 0.6 * result.one_machine.simulation.step_s


def test_one_machine_is_not_spelled_out() -> None:
    of = graph()
    assert split_reductions(of, one_machine_cut(of))[0] is of
