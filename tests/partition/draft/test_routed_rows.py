"""Which rows of a tensor an island is known to read or fill, however the model says it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Graph, Op
from cutset.partition.operators.island import ISLAND, decode_form
from cutset.partition.operators.routed_rows import COMBINE, DISPATCH

TOKENS, WIDTH, EXPERTS, CHOSEN = 64, 8, 4, 2
Forward = Callable[[Any, Tensor, Tensor, Tensor, Tensor], Tensor]


class Mixture(nn.Module):
    """Experts, whose parts `add` puts together of (self, tokens, probabilities, weights, chosen)."""

    def __init__(self, add: Forward) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        share = self.gate(x).softmax(-1)
        return self.add(self, x, share, *share.topk(CHOSEN, -1))


def graph_of(add: Forward) -> Graph:
    x = torch.zeros(TOKENS, WIDTH)
    return capture(Mixture(add), F.mse_loss, [x], [x])[0]


def ops(graph: Graph, target: str) -> list[Op]:
    return [op for op in graph.ops if op.target == target]


def by_where(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        token, rank = torch.where(chosen == number)
        out.index_add_(0, token, expert(x[token]) * weights[token, rank, None])
    return out


def by_mask(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        mask = (chosen == number).any(-1)
        out[mask] += expert(x[mask]) * share[mask, number, None]
    return out


def by_indices(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        token = (chosen == number).any(-1).nonzero().squeeze(-1)
        out[token] = out[token] + expert(x.index_select(0, token))
    return out


def by_one_hot(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out, mask = torch.zeros_like(x), F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
    for number, expert in enumerate(self.experts):
        rank, token = torch.where(mask[number])
        out.index_add_(0, token, expert(x[None, token].reshape(-1, WIDTH)) * weights[token, rank, None])
    return out


def by_columns(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = x.new_zeros(x.shape)
    for number, expert in enumerate(self.experts):
        token = torch.nonzero(chosen == number)[:, 0]
        out = out.index_add(-2, token, expert(x[token]))
    return out


def each_put_apart(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        token, part = (chosen == number).any(-1).nonzero().flatten(), torch.zeros_like(x)
        part[token] = expert(x[token])
        out = out + part
    return out


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("add", [by_where, by_mask, by_indices, by_one_hot, by_columns, each_put_apart])
@pytest.mark.run
def test_experts_read_and_fill_their_tokens_alone(add: Forward) -> None:
    graph = graph_of(add)
    dispatches, combines = ops(graph, DISPATCH), ops(graph, COMBINE)
    assert (len(dispatches), len(combines), len(ops(graph, ISLAND))) == (EXPERTS, EXPERTS, EXPERTS)
    read = {graph.tensors[op.outputs[0]].density for op in dispatches}
    filled = {graph.tensors[op.inputs[0]].density for op in combines}
    assert read == filled
    assert all(0.3 < density < 0.7 for density in read)  # CHOSEN / EXPERTS, of three made-up batches
    assert all(graph.tensors[op.outputs[0]].density == 1 for op in combines)
    assert all(op.is_cuttable for op in (*dispatches, *combines))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("add", [by_mask, by_indices])
@pytest.mark.run
def test_no_expert_waits_for_another_that_adds_to_the_same(add: Forward) -> None:
    made = {name for op in ops(graph_of(add), ISLAND) for name in op.outputs}
    assert all(made.isdisjoint(op.inputs) for op in ops(graph_of(add), ISLAND))


@pytest.mark.run
def test_what_is_put_twice_in_one_place_is_not_added() -> None:
    def add(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        token = torch.where(chosen < 2)[0]  # once or twice
        out = x.clone()
        out[token] = out[token] + self.experts[0](x[token])
        return out

    (island,) = ops(graph_of(add), ISLAND)
    assert [s.target for s in decode_form(island.arguments["form"]).steps][-1] == "aten.index_put.default"
    assert not ops(graph_of(add), COMBINE)


def nothing_is_routed(add: Forward) -> bool:
    graph = graph_of(add)
    assert ops(graph, ISLAND)
    return not ops(graph, DISPATCH) and not ops(graph, COMBINE)


def test_a_tensor_of_which_more_is_read_travels_whole() -> None:
    def add(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        token = torch.where(chosen[:, 0] == 0)[0]
        return x + torch.cat([x[token], x]).sum(0)

    assert nothing_is_routed(add)


def test_columns_are_no_rows() -> None:
    def add(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        column = torch.where(chosen[:WIDTH, 0] == 0)[0]
        return x + x.index_select(-1, column).sum(-1, keepdim=True)

    assert nothing_is_routed(add)


def test_places_in_a_longer_tensor_are_no_rows_of_it() -> None:
    def add(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        token = torch.where(chosen[: TOKENS // 2, 0] == 0)[0]
        return x + x[token].sum(0)

    assert nothing_is_routed(add)


def test_most_rows_travel_as_all() -> None:
    def add(self: Any, x: Tensor, share: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        token = torch.where(chosen[:, 0] < EXPERTS - 0.5)[0]
        return torch.zeros_like(x).index_add(0, token, self.experts[0](x[token]))

    assert nothing_is_routed(add)


def test_narrow_rows_and_the_batch_itself_are_not_routed() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, 2)

        def forward(self, x: Tensor) -> Tensor:
            token = torch.where(x[:, 0] > 0)[0]
            return self.first(x) + self.first(x)[token].sum(0) + x[token].mean()

    x = torch.zeros(TOKENS, WIDTH)
    graph = capture(Net(), F.mse_loss, [x], [torch.zeros(TOKENS, 2)])[0]
    assert ops(graph, ISLAND)
    assert not ops(graph, DISPATCH)
