"""rows_dropout: torch's own masks on one machine, and the same ones wherever the model is cut."""

import pytest
import torch
import torch.nn.functional as F
from cutting import Subject, assert_same, finest_cut, run_cut, run_plain
from row_calls import TRIALS, Given, assembled, assert_equal, drafted, given, random_boxes, rows_called, rows_of, x
from torch import Tensor, nn
from zoo import Case, images

from cutset.partition.operators import rows_dropout
from cutset.partition.dataflow.cut import one_machine
from cutset.partition.ir.random_ops import noise_name
from cutset.partition.capture.axis_inference import resolve

CALLS = {
    "feature": given("feature_dropout", x(4, 6, 3, 2), 0.4, True),
    "alpha": given("alpha_dropout", x(4, 6), 0.3, True),
    "feature alpha": given("feature_alpha_dropout", x(4, 6, 5), 0.3, True),
}


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)
def test_boxes_share_one_mask(case: Given) -> None:
    draft, values = drafted(case, False)
    graph = resolve(draft)
    op, info = graph.ops[-1], graph.tensors[noise_name("op")]
    values[info.name] = (torch.rand(info.shape) > 0.4).to(torch.float64) / 0.6
    whole = assembled(op, [op.nest.box], graph, values)
    for seed in range(1, TRIALS + 1):
        assert_equal(assembled(op, random_boxes(graph, op, seed), graph, values), whole)


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)
def test_a_call_that_drops_nothing_draws_nothing(case: Given) -> None:
    for p, train in ((0.0, True), (0.5, False), (1.0, True)):
        draft, values = drafted(Given(case.target, (case.args[0], p, train), {}), False)
        graph = resolve(draft)
        assert noise_name("op") not in graph.tensors
        assert_equal(assembled(graph.ops[-1], random_boxes(graph, graph.ops[-1], 1), graph, values), values["out"])


def test_every_row_has_a_call() -> None:
    assert rows_of(rows_dropout) == rows_called(CALLS)


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 4, 1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.alpha_dropout(F.selu(self.first(x)), 0.2, self.training)
        x = F.dropout2d(x, 0.3, self.training)
        x = F.feature_alpha_dropout(self.second(x), 0.2, self.training)
        x = F.dropout1d(x.flatten(2), 0.1, self.training)
        return self.out(F.dropout(x.mean(2), 0.1, self.training))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_masks_are_those_of_torch(dtype: torch.dtype) -> None:
    of = Subject(Case(Drops, images(4, 2, 6, 5)), dtype)
    assert all(op.cuttable for op in of.graph.ops)
    assert_same(run_cut(of, one_machine(of.graph), micros=2), run_plain(of, micros=2), rtol=0.0)
    cut = run_cut(of, finest_cut(of.graph, 3), micros=2)
    assert_same(cut, run_plain(of, micros=2), rtol=1e-5 if dtype is torch.float32 else 1e-11)
