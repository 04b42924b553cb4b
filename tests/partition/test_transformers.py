"""Transformers of plain operators are all cut: no opaque operator, and every cut trains like plain torch."""

import functools

import pytest
import torch
from cutting import Subject, assert_same, cuts, finest_cut, predict_cut, run_cut, run_plain
from handwritten_transformers import GROUPS, HEADS, TRANSFORMERS, WIDTH, WORDS
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.partition.ir.graph import OPAQUE


@functools.cache
def subject(name: str) -> Subject:
    return Subject(TRANSFORMERS[name], torch.float64)


def tolerance(name: str) -> float:
    """One of them casts its scores to float32, whatever it computes in, and so are parts of a softmax then."""
    return 1e-6 if name == "bias by distance, gated" else 1e-10


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.run
def test_no_operator_is_opaque(name: str) -> None:
    for graph in (subject(name).graph, subject(name).evaluation):
        assert {op.target for op in graph.ops if op.sharding_rule == OPAQUE} == set()
        uncut = [op for op in graph.ops if not op.is_cuttable]
        assert all(not op.nest.loops for op in uncut), [op.name for op in uncut]
        assert sum(op.flops for op in uncut) < 0.001 * sum(op.flops for op in graph.ops)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_finest_cut_is_plain_torch(name: str) -> None:
    of = subject(name)
    cut = finest_cut(of.graph, 3)
    assert_same(run_cut(of, cut), run_plain(of), rtol=tolerance(name))
    with torch.no_grad():
        expected = of.fresh()[0].eval()(*of.batch.inputs)
        close = max(1e-7, tolerance(name))
        torch.testing.assert_close(predict_cut(of, cut), expected, rtol=close, atol=close)


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", TRANSFORMERS)
@settings(max_examples=2)
@given(data=st.data())
def test_random_cuts_are_plain_torch(name: str, data: st.DataObject) -> None:
    of = subject(name)
    assert_same(run_cut(of, data.draw(cuts(of.graph))), run_plain(of), rtol=tolerance(name))


@pytest.mark.run
def test_heads_are_found_in_a_fused_projection() -> None:
    """Queries are the first half, keys and values quarters; each is heads, or groups of them, of the head's width."""
    info = subject("grouped heads in one projection, gated").graph.tensors["attention.project.weight"]
    size = WIDTH // HEADS
    assert info.sizes == ((2, HEADS // GROUPS, GROUPS, size), (WIDTH,))


@pytest.mark.run
def test_a_vocabulary_that_is_an_output_axis_is_one_of_the_embedding_too() -> None:
    graph = subject("bias by distance, gated").graph
    (looked_up,) = (op for op in graph.ops if op.target == "aten.embedding.default" and "embed.weight" in op.inputs)
    (head,) = (op for op in graph.ops if op.target == "aten.linear.default" and "embed.weight" in op.inputs)
    words = [loop.axis for loop in head.nest.loops if loop.size == WORDS and loop.kind == "parallel"]
    assert [loop.axis for loop in looked_up.nest.loops if loop.kind == "reduction"] == words
