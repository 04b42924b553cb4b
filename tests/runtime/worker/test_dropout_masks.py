"""What is drawn does not depend on the cut, and is what plain torch draws."""

import pytest
import torch
from cutting import finest_cut, random_cut, subject
from torch import nn

from cutset.partition.capture.export import capture
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.worker.dropout_masks import mask_seed, sample_masks
from cutset.runtime.worker.program import Program, programs


def uncut(model: nn.Module, x: torch.Tensor) -> Program:
    graph, _ = capture(model, lambda y: y.sum(), [x])
    return programs(lower_cut(graph, one_machine_cut(graph)), training=True)[0]


def test_seeds_are_the_same_on_every_machine_and_differ_by_step_and_micro_batch() -> None:
    assert mask_seed(0, 3, 1) == 67792362943569076
    places = [(seed, step, micro) for seed in range(3) for step in range(3) for micro in range(3)]
    assert len({mask_seed(*place) for place in places}) == len(places)


@pytest.mark.parametrize("layout", ["rows", "columns", "spread"])
def test_masks_are_those_of_torch_whatever_the_layout(layout: str) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x * 2
            laid_out = {"rows": h, "columns": h.t(), "spread": h[:, :1].expand(-1, 3)}[layout]
            return nn.functional.dropout(laid_out, 0.3) + nn.functional.dropout(laid_out, 0.6)

    x = torch.ones(5, 4)
    masks = sample_masks(uncut(Net(), x), 11)
    torch.manual_seed(11)
    assert torch.equal(sum(masks.values()) * 2, Net()(x))


@pytest.mark.run
def test_every_machine_has_the_same_masks_or_none() -> None:
    graph = subject("transformer_dropout").graph
    seen: dict[str, torch.Tensor] = {}
    for program in programs(lower_cut(graph, finest_cut(graph, 3)), training=True):
        for name, mask in sample_masks(program, 5).items():
            assert torch.equal(seen.setdefault(name, mask), mask)
    assert len(seen) == 4


def test_a_machine_draws_no_further_than_it_needs() -> None:
    graph = subject("transformer_dropout").graph
    cut = random_cut(graph, 2, [0] * len(graph.ops))
    first = next(op.name for op in graph.ops if op.sharding_rule == "aten.dropout")
    cut.boxes[first][0] = (cut.boxes[first][0][0], 1)  # type: ignore[index]
    one, other = programs(lower_cut(graph, cut), training=True)
    assert len(one.random_draws) == 4
    assert other.random_draws[-1].tensor == f"{first}.random"


def test_an_operator_that_draws_by_itself_gets_the_state_it_would_have() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = nn.functional.dropout(x, 0.5)
            return nn.functional.dropout(h + torch.rand_like(h), 0.5)

    x = torch.ones(4, 3)
    drawn = sample_masks(uncut(Net(), x), 2)
    torch.manual_seed(2)
    first = nn.functional.dropout(x, 0.5)
    state = torch.get_rng_state()
    torch.rand_like(first)
    second = nn.functional.dropout(x, 0.5)
    masks = [mask for mask in drawn.values() if mask.dtype == torch.float32]
    assert torch.equal(masks[0], first)
    assert torch.equal(masks[1], second)
    assert torch.equal(next(mask for mask in drawn.values() if mask.dtype == torch.uint8), state)


def test_drawing_leaves_torchs_own_generator_alone() -> None:
    of = subject("recurrent")
    (program,) = programs(lower_cut(of.graph, one_machine_cut(of.graph)), training=True)
    before = torch.get_rng_state()
    assert sample_masks(program, 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_random_numbers_nothing_is_drawn() -> None:
    of = subject("mlp")
    (program,) = programs(lower_cut(of.graph, one_machine_cut(of.graph)), training=True)
    assert sample_masks(program, 1) == {}
