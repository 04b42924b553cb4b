"""Models whose operators have rules that were found by running them: cut and uncut they compute the same."""

import functools

import pytest
import torch
from candidate_cuts import candidates
from cutting import Subject, assert_same, finest_cut, predict_cut, run_cut, run_plain
from found_models import FOUND_MODELS
from graph_nets import GRAPH_NETS
from marking import with_slow
from spectral_models import SPECTRAL

from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.discovery.search import search_rule
from cutset.partition.ir.graph import FOUND, OPAQUE

pytestmark = [
    # Of torch's own advice, which some operators give once in a process.
    pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning"),
    # One process has them all, since a capture is made once for all tests of a model.
    pytest.mark.xdist_group("found_rules"),
]

MODELS = SPECTRAL | GRAPH_NETS | FOUND_MODELS
WITHOUT_FOUND = ("graph convolution",)


@functools.cache
def subject(name: str) -> Subject:
    return Subject(MODELS[name], torch.float64)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.run
def test_no_operator_is_opaque(name: str) -> None:
    rules = {op.sharding_rule for op in subject(name).graph.ops}
    assert OPAQUE not in rules
    assert (FOUND in rules) == (name not in WITHOUT_FOUND)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", GRAPH_NETS | FOUND_MODELS)
def test_on_one_machine_all_is_as_in_plain_torch_bit_for_bit(name: str) -> None:
    of = subject(name)
    assert_same(run_cut(of, one_machine_cut(of.graph)), run_plain(of), rtol=0.0)


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("machines", [2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_the_finest_cut_trains_and_predicts_like_plain_torch(name: str, machines: int) -> None:
    of = subject(name)
    cut = finest_cut(of.graph, machines)
    found = [op.name for op in of.graph.ops if op.sharding_rule == FOUND]
    assert all(len(cut.boxes[name]) > 1 for name in found)
    assert_same(run_cut(of, cut), run_plain(of), rtol=1e-9)
    with torch.no_grad():
        expected = of.fresh()[0].eval()(*of.batch.inputs)
    torch.testing.assert_close(predict_cut(of, cut), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("machines", with_slow([3], [2, 4]))
@pytest.mark.parametrize("name", MODELS)
def test_every_planned_cut_trains_like_plain_torch(name: str, machines: int) -> None:
    of = subject(name)
    for candidate in candidates(of.graph, uniform_cluster(machines), seed=0):
        assert_same(run_cut(of, candidate.cut), run_plain(of), rtol=1e-9)


@pytest.mark.run
@pytest.mark.parametrize("name", ["fourier operator", "batches of matrices"])
def test_a_second_capture_finds_the_same_graph(name: str) -> None:
    before = subject(name).graph.digest
    search_rule.cache_clear()
    assert Subject(MODELS[name], torch.float64).graph.digest == before
