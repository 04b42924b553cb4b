"""Operators with found rules in the kernel and in the cost model."""

import pytest
import torch
from rule_calls import drafted, given, operands, run_box, x

from cutset.partition.cluster.cost_model import class_of
from cutset.partition.draft.axis_inference import build_graph


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (given("real", torch.ones(4, 3, dtype=torch.complex128)), "elementwise"),  # a written rule
        (given("polygamma", 1, torch.ones(4, 3)), "elementwise"),
        (given("fft_fft", torch.ones(4, 3)), "opaque"),
        (given("aten.adjoint.default", torch.ones(4, 3, 2)), "view"),
    ],
    ids=lambda value: getattr(value, "target", value),
)
def test_the_class_is_what_torch_tells(case, expected: str) -> None:  # type: ignore[no-untyped-def]
    assert class_of(build_graph(drafted(case, False)[0]).ops[-1]) == expected


def test_a_box_gets_its_own_size_where_an_argument_is_one() -> None:
    draft, values = drafted(given("affine_grid_generator", x(5, 2, 3), [5, 2, 4, 6], False), False)
    graph = build_graph(draft)
    op = graph.ops[-1]
    box = ((1, 3), (0, 4), (0, 6), (0, 2))
    (part,) = run_box(op, box, operands(op, box, graph, values), graph.tensors)
    assert torch.equal(part, values["out"][1:3])
