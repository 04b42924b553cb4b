"""DistBelief's image nets: their totals, and pooling and normalisation against the formulas spelled out."""

import math

import pytest
import torch
import torch.nn.functional as F
from candidate_cuts import candidates
from cutting import Subject, assert_same, finest_cut, run_cut, run_plain
from zoo import Case

from cutset.models import TaskError, local_80m, local_330m, local_1700m, local_net
from cutset.models.tasks.distbelief_images import MIN_MEAN_SQUARE, OneVersusAll, normalise, pool_l2
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.ir.graph import OPAQUE
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec

DOUBLE = torch.float64
TOTALS = [(local_80m, 80e6, 78_951_104), (local_330m, 330e6, 330_664_998), (local_1700m, 1.7e9, 1_674_284_196)]


@pytest.mark.parametrize(("factory", "stated", "counted"), TOTALS)
def test_totals_are_those_of_the_paper_within_two_percent(factory, stated, counted):
    model = factory().build(seed=0, device="meta")
    assert sum(p.numel() for p in model.parameters()) == counted
    assert abs(counted / stated - 1) < 0.02
    assert all(p.is_meta for p in model.parameters())


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("factory", [local_80m, local_330m, local_1700m])
def test_every_operator_of_the_large_nets_can_be_cut(factory):
    graph = capture_task(TaskSpec(f"cutset.models:{factory.__name__}")).train
    assert [op.name for op in graph.ops if op.sharding_rule == OPAQUE] == []
    filters = [op for op in graph.ops if op.sharding_rule == "cutset.local2d"]
    assert len(filters) == 3
    assert all(loop.kind != "fixed" for op in graph.ops for loop in op.nest.loops)
    assert graph.tensors[graph.results[0]].shape == ()


def test_pooling_is_the_root_of_the_mean_square_of_four_by_four():
    x = torch.randn(2, 3, 10, 10, dtype=DOUBLE)
    y = pool_l2(x, 3)
    assert y.shape == (2, 3, 3, 3)
    for row in range(3):
        for column in range(3):
            window = x[:, :, 3 * row : 3 * row + 4, 3 * column : 3 * column + 4]
            torch.testing.assert_close(y[:, :, row, column], window.square().mean((2, 3)).sqrt())


def test_normalisation_takes_mean_and_deviation_over_all_maps_around_a_point():
    x = torch.randn(2, 3, 6, 7, dtype=DOUBLE)
    wide = F.pad(x, (2, 2, 2, 2))
    mean = torch.empty(2, 6, 7, dtype=DOUBLE)
    for row in range(6):
        for column in range(7):
            mean[:, row, column] = wide[:, :, row : row + 5, column : column + 5].sum((1, 2, 3)) / (3 * 25)
    centred = x - mean[:, None]
    wide = F.pad(centred, (2, 2, 2, 2))
    expected = torch.empty_like(x)
    for row in range(6):
        for column in range(7):
            square = wide[:, :, row : row + 5, column : column + 5].square().sum((1, 2, 3)) / (3 * 25)
            expected[:, :, row, column] = centred[:, :, row, column] / square.clamp_min(MIN_MEAN_SQUARE).sqrt()[:, None]
    torch.testing.assert_close(normalise(x), expected)


def test_a_black_image_has_finite_gradients():
    task = local_net()
    model, example = task.build(seed=0), task.example(2)
    task.loss(model(torch.zeros_like(example.inputs[0])), *example.targets).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def test_the_loss_is_a_logistic_classifier_a_class():
    scores, target = torch.randn(4, 6, dtype=DOUBLE), torch.tensor([0, 5, 2, 2])
    expected = 0.0
    for sample, right in enumerate(target.tolist()):
        for k in range(6):
            p = torch.sigmoid(scores[sample, k]).item()
            expected -= math.log(p if k == right else 1 - p) / 4
    assert OneVersusAll(6)(scores, target).item() == pytest.approx(expected)


@pytest.mark.slow
def test_every_cut_trains_like_plain_torch():
    small = local_net(maps=2, steps=(2,), image=14, kernel=3, classes=4)
    of = Subject(Case(lambda: small.model(), lambda: small.data("train").rows(torch.arange(3)), small.loss), DOUBLE)
    found = list(candidates(of.graph, uniform_cluster(4), seed=0))
    assert any(candidate.name.startswith("tiles") for candidate in found)
    for cut in (*(candidate.cut for candidate in found), finest_cut(of.graph, 3)):
        assert_same(run_cut(of, cut), run_plain(of), rtol=1e-11)


@pytest.mark.run
def test_a_small_one_learns_its_synthetic_images():
    task = local_net(maps=4)
    data = task.data("train").rows(torch.arange(64))
    model = task.build(seed=0)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        task.loss(model(*data.inputs), *data.targets).backward()
        optimizer.step()
    test = task.data("test")
    with torch.no_grad():
        assert task.correct(model(*test.inputs), *test.targets) >= 0.9 * len(test)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"image": 5}, "stage 1 gets 5x5 points"),
        ({"steps": (4, 4)}, "stage 2 gets 7x7 points"),
        ({"steps": ()}, r"steps=\(\) is not a list"),
        ({"maps": 0}, "maps=0 is not a whole number"),
        ({"steps": (2, 2.0)}, "steps=2.0 is not a whole number"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, said):
    with pytest.raises(TaskError, match=said):
        local_net(**sizes).build(seed=0, device="meta")
