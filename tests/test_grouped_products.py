"""Mixtures of experts by grouped products: however they are cut, they compute what plain torch does."""

import random
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from candidate_cuts import candidates
from cutting import Subject, assert_same, finest_cut, predict_cut, random_cut, run_cut, run_plain
from torch import Tensor, nn
from zoo import Case, images

from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.cut import one_machine_cut

ROUNDING = 2e-5  # torch has these products in float32, but not in float64

# One process has them all, since a capture is made once for all tests of a model.
pytestmark = pytest.mark.xdist_group("grouped_products")


class GroupedExperts(nn.Module):
    """Sorts tokens by their expert, and multiplies those of each with its matrices, as transformers' mixtures do."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(8, 4), nn.Linear(8, 5)
        self.up, self.down = nn.Parameter(0.3 * torch.randn(4, 8, 16)), nn.Parameter(0.3 * torch.randn(4, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.stack([(chosen == expert).sum() for expert in range(4)])
        offs = counts.cumsum(0).to(torch.int32)
        tokens = x[order // 2]
        hidden = F.silu(F.grouped_mm(tokens, self.up, offs=offs))
        out = F.grouped_mm(hidden, self.down, offs=offs) * weights.flatten()[order, None]
        return self.head(torch.zeros_like(x).index_add(0, order // 2, out))


@cache
def experts() -> Subject:
    return Subject(Case(GroupedExperts, images(12, 8)), torch.float32)


def test_one_machine_has_the_bits_of_plain_torch() -> None:
    assert_same(run_cut(experts(), one_machine_cut(experts().graph)), run_plain(experts()), rtol=0)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("machines", [2, 3, 4])
def test_cuts_equal_plain_torch(machines: int) -> None:
    of, draw = experts(), random.Random(machines)
    cuts = [candidate.cut for candidate in candidates(of.graph, uniform_cluster(machines), seed=0)]
    cuts.append(finest_cut(of.graph, machines))
    cuts += [random_cut(of.graph, machines, [draw.randrange(2**16) for _ in of.graph.ops]) for _ in range(5)]
    for cut in cuts:
        assert_same(run_cut(of, cut), run_plain(of), rtol=ROUNDING)


def test_evaluation_equals_plain_torch() -> None:
    of = experts()
    found = predict_cut(of, finest_cut(of.graph, 3))
    torch.testing.assert_close(found, of.fresh()[0].eval()(*of.batch.inputs), rtol=ROUNDING, atol=ROUNDING)


def test_products_are_cut_along_hidden_units_and_tokens() -> None:
    products = [op for op in experts().graph.ops if op.target == "aten._grouped_mm.default"]
    assert len(products) == 2
    kinds = [loop.kind for op in products for loop in op.nest.loops]  # the rows are tokens times chosen experts
    assert kinds == 2 * ["parallel", "parallel", "parallel", "reduction"]
