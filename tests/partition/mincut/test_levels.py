"""Level groups: depth in operators with real work, and groups of similar work."""

import torch
from example_graphs import chain
from torch import nn
from weighted_graphs import transformer

from cutset.partition.capture.export import capture
from cutset.partition.mincut.block_graph import level_groups


def test_each_product_of_a_chain_is_a_level_and_the_loss_is_light() -> None:
    graph = chain(64, 64, 64, 64)
    assert list(level_groups(graph, 8).values()) == [0, 1, 2, 3]
    assert graph.ops[-1].name == "cross_entropy_loss"


def test_views_belong_to_no_group_and_light_operators_to_the_last() -> None:
    groups = level_groups(transformer(1, width=64, heads=4, tokens=32))
    assert [groups[n] for n in ("linear", "scaled_dot_product_attention", "linear_1", "linear_2", "linear_3")] == [
        *range(5)
    ]
    assert groups["view"] == groups["permute"] == -1
    assert groups["layer_norm"] == groups["add"] == groups["gelu"] == 5


def test_what_runs_side_by_side_is_one_level() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.join = (nn.Linear(32, 32) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.join(self.left(x) + self.right(x))

    graph, _ = capture(Fork(), lambda y: y.mean(), [torch.zeros(4, 32)])
    groups = level_groups(graph)
    assert [groups[name] for name in ("linear", "linear_1", "linear_2")] == [0, 0, 1]


def test_neighbouring_levels_are_merged_to_groups_of_similar_work() -> None:
    graph = chain(*[64] * 21)
    groups = level_groups(graph, 6)
    numbers = [groups[op.name] for op in graph.ops[:20]]
    assert numbers == sorted(numbers)
    assert [numbers.count(g) for g in range(5)] == [4] * 5
    assert groups["cross_entropy_loss"] == 5


def test_one_group_holds_all() -> None:
    assert set(level_groups(chain(64, 64, 64), 1).values()) == {0}
