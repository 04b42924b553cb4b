"""Recurrent operators of a trace become operators of each time step, unless they are too many."""

import pytest
import torch
from recurrent_nets import LanguageModel, unrolled, whole
from torch import nn
from zoo import per_token

from cutset.errors import BadInput
from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import OPAQUE, Graph
from cutset.partition.mincut.cut_axes import unit_axes
from cutset.partition.recurrence.recurrent_call import MAX_CELLS, has_recurrent


def traced(steps: int, *, unrolled: bool = True) -> tuple[Graph, list[str]]:
    """The graph of a language model over so many steps, and the notes on it."""
    tokens, notes = torch.zeros(2, steps, dtype=torch.int64), list[str]()
    with torch.device("meta"):
        model = LanguageModel()
    return capture(model, per_token, [tokens], [tokens], unrolled=unrolled, trust=True, tell=notes.append)[0], notes


def test_gates_and_hidden_units_are_axes() -> None:
    graph = unrolled("language_model").graph
    assert not has_recurrent(graph)
    assert not [op.target for op in graph.ops if op.sharding_rule == OPAQUE]
    for layer in (0, 1):
        gates, features = graph.tensors[f"lstm.weight_hh_l{layer}"].axes
        assert [graph.axes[axis][1] for axis in (*gates, *features)] == [4, 8, 8]
        assert gates[1] == features[0]  # what a unit gets and what it gives is one axis
        assert gates[1] in unit_axes(graph)


@pytest.mark.run
def test_whole_it_is_one_opaque_operator() -> None:
    graph = whole("language_model").graph
    assert has_recurrent(graph)
    assert [op.target for op in graph.ops if op.sharding_rule == OPAQUE] == ["aten.lstm.input"]


@pytest.mark.slow
def test_too_many_time_steps_stay_whole_with_a_note() -> None:
    graph, notes = traced(MAX_CELLS // 2)
    assert not has_recurrent(graph)
    assert notes == []
    graph, notes = traced(MAX_CELLS // 2 + 1)
    assert has_recurrent(graph)
    assert notes == [
        f"aten.lstm.input with {MAX_CELLS + 2} time steps in all layers and directions stays whole: at most "
        f"{MAX_CELLS} of a model become operators of their own"
    ]


def test_packed_sequences_are_refused_as_before() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]))
            return self.rnn(packed)[1].sum()

    def outcome(unrolled: bool) -> str:
        try:
            graph, _ = capture(Packed(), lambda y: y, [torch.zeros(3, 2, 3)], unrolled=unrolled, trust=True)
        except BadInput as error:
            return str(error)
        return graph.digest

    assert outcome(False) == outcome(True)


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["lstm_both_ways", "gru", "rnn_relu", "cells"])
def test_every_operator_with_work_can_be_cut(name: str) -> None:
    graph = unrolled(name).graph
    assert all(op.is_cuttable for op in graph.ops if op.flops and op.nest.loops)
