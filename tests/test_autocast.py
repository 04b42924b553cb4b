"""Training in `torch.autocast` does not depend on the cut either.

One machine gives the same bits. On several, sums are rounded to bfloat16 (8 bits) in another order: gradients may
differ by three hundredths of the largest entry. Where a value that is rounded otherwise crosses the kink of a relu or a
maximum, single entries differ by more; random cuts are held to three hundredths of the gradient's norm.
"""

import msgspec
import pytest
import torch
import torch.nn.functional as F
from candidate_cuts import candidates
from cutting import Outcome, Subject, assert_same, cuts, finest_cut, predict_cut, run_cut, run_plain, subject
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from marking import with_slow
from torch import Tensor, nn
from zoo import CASES, MORE_CASES, Case, images

from cutset.errors import BadInput, UsageError
from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.tools.task.in_process import make_replica, plan_model

TOLERANCE, FLOOR = 3e-2, 0.05
ALL = [*CASES, *MORE_CASES]
MODELS = ("mlp", "conv", "transformer_dropout", "gpt")


def of_bfloat16(name: str) -> Subject:
    try:
        return subject(name, torch.float32, "bfloat16")
    except BadInput as error:
        if "casts within itself" not in error.facts:
            raise
        pytest.skip("torch has a kernel on this processor that casts within itself, which is refused")


def assert_near(cut: Outcome, plain: Outcome) -> None:
    """Loss and the gradient as a whole are alike."""
    assert cut.loss == pytest.approx(plain.loss, rel=3e-3)
    found, expected = (torch.cat([outcome.gradients[n].flatten() for n in cut.gradients]) for outcome in (cut, plain))
    assert (found - expected).norm() <= TOLERANCE * expected.norm()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("micros", with_slow([3], [1]))
@pytest.mark.parametrize("name", with_slow(MODELS, [name for name in ALL if name not in MODELS]))
def test_one_machine_gives_the_same_bits(name: str, micros: int) -> None:
    of = of_bfloat16(name)
    cut = run_cut(of, one_machine_cut(of.graph), micros=micros)
    assert_same(cut, run_plain(of, micros=micros), rtol=0.0 if of.exact else 1e-5)
    assert all(gradient.dtype == torch.float32 for gradient in cut.gradients.values())


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_computed_is_of_lower_precision(name: str) -> None:
    of = of_bfloat16(name)
    products = [op for op in of.graph.ops if op.target.split(".")[1] in ("linear", "conv2d", "matmul", "local2d")]
    assert all(of.graph.tensors[op.outputs[0]].dtype == "bfloat16" for op in products)
    assert subject(name, torch.float32).graph.digest != of.graph.digest


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("machines", with_slow([3], [2]))
@pytest.mark.parametrize("name", with_slow(["mlp", "conv"], ["transformer_dropout", "gpt"]))
def test_every_planned_cut_trains_like_plain_autocast(name: str, machines: int) -> None:
    of = of_bfloat16(name)
    for number, candidate in enumerate(candidates(of.graph, uniform_cluster(machines), seed=0)):
        micros = (1, 3)[number % 2]
        cut = run_cut(of, candidate.cut, micros=micros)
        assert_same(cut, run_plain(of, micros=micros), rtol=TOLERANCE, floor=FLOOR)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_slow(["mlp"], ["conv", "transformer_dropout", "gpt"]))
def test_every_random_cut_trains_like_plain_autocast(name: str) -> None:
    of = of_bfloat16(name)

    @settings(max_examples=8, suppress_health_check=list(HealthCheck))
    @given(cut=cuts(of.graph), micros=st.sampled_from([1, 3]))
    def check(cut, micros) -> None:  # type: ignore[no-untyped-def]
        assert_near(run_cut(of, cut, micros=micros), run_plain(of, micros=micros))

    check()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", MODELS)
def test_all_loops_at_once_may_be_cut(name: str) -> None:
    of = of_bfloat16(name)
    assert_near(run_cut(of, finest_cut(of.graph, 3)), run_plain(of))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_cut_model_predicts_like_plain_autocast(name: str) -> None:
    of = of_bfloat16(name)
    model, _ = of.fresh()
    with torch.autocast("cpu", dtype=torch.bfloat16):  # without gradients torch has a kernel for a transformer's layer
        expected = model.eval()(*of.batch.inputs).detach()
    assert torch.equal(predict_cut(of, one_machine_cut(of.graph)), expected)
    found = predict_cut(of, finest_cut(of.graph, 2))
    assert found.dtype == torch.bfloat16
    assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max()


class Mixed(nn.Module):
    """Regions of autocast of the model's own, one of them in another dtype and one in which there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(x) + self.a(x * 2)
            with torch.autocast("cpu", enabled=False):
                y = y.float() + self.b(x)
            with torch.autocast("cpu", dtype=torch.float16):
                y = y + self.c(y)
        with torch.no_grad(), torch.autocast("cpu"):
            fixed = self.a(x)
        return self.b(y) + fixed.float()


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("outer", ["", "bfloat16"])
def test_a_model_may_have_regions_of_its_own(outer: str) -> None:
    of = Subject(Case(Mixed, images(4, 6)), torch.float32, outer)
    for micros in (1, 3):
        plain = run_plain(of, micros=micros)
        assert_same(run_cut(of, one_machine_cut(of.graph), micros=micros), plain, rtol=0.0)
        assert_same(run_cut(of, finest_cut(of.graph, 2), micros=micros), plain, rtol=TOLERANCE, floor=FLOOR)


class Branching(nn.Module):
    """A block that looks at its data."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > 0 else self.inner(-x)


@pytest.mark.run
def test_the_inside_of_a_leaf_module_is_computed_so_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Branching(), nn.Linear(6, 3))
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    placement = plan_model(model, x, y, loss=F.cross_entropy, machines=1, leaf_modules=["1"], autocast="bfloat16")
    with make_replica(model, placement, x, y, loss=F.cross_entropy) as replica:
        found = replica.step(Data((x,), (y,)), 0)
        gradients = replica.gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = F.cross_entropy(model(x), y)
    expected.backward()
    assert found == expected.item()
    for name, parameter in model.named_parameters():
        assert torch.equal(gradients[name], parameter.grad), name


def test_a_placement_says_it_and_does_not_fit_the_model_without_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    placement = plan_model(model, x, y, loss=F.cross_entropy, autocast="bfloat16")
    assert placement.autocast == "bfloat16"
    assert plan_model(model, x, y, loss=F.cross_entropy).autocast == ""
    with make_replica(model, placement, x, y, loss=F.cross_entropy) as replica:
        replica.step(Data((x,), (y,)), 0)
    with pytest.raises(BadInput, match="E340: the placement is for another model"):
        make_replica(model, msgspec.structs.replace(placement, autocast=""), x, y, loss=F.cross_entropy)


def test_a_dtype_that_there_is_no_autocast_for_is_named() -> None:
    with pytest.raises(UsageError, match=r"E219: no autocast in 'float64'; there are bfloat16, float16"):
        capture(nn.Linear(2, 2), None, [torch.zeros(1, 2)], autocast="float64")
