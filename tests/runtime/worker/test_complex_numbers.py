"""Models of complex numbers, cut and uncut: torch views pairs of numbers as complex ones at even places alone."""

import functools

import pytest
import torch
from cutting import STEP, Subject, assert_same, cuts, finest_cut, predict_cut, run_cut, run_plain
from hypothesis import given, settings
from hypothesis import strategies as st
from spectral_models import SPECTRAL

from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.operators.step_module import StepModule
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.dropout_masks import mask_seed
from cutset.runtime.worker.leaf_modules import LeafModules
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.uncut_worker import UncutWorker


@functools.cache
def subject(name: str, dtype: torch.dtype = torch.float64) -> Subject:
    return Subject(SPECTRAL[name], dtype)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SPECTRAL)
def test_on_one_machine_all_is_as_in_plain_torch_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    of = subject(name, dtype)
    assert_same(run_cut(of, one_machine_cut(of.graph), micros=2), run_plain(of, micros=2), rtol=0.0)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", SPECTRAL)
@settings(max_examples=8)
@given(data=st.data())
def test_the_cut_model_computes_what_the_whole_does(name: str, data: st.DataObject) -> None:
    of = subject(name)
    assert_same(run_cut(of, data.draw(cuts(of.graph, 3))), run_plain(of), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECTRAL)
def test_the_finest_cut_trains_and_predicts(name: str) -> None:
    of = subject(name)
    cut = finest_cut(of.graph, 3)
    assert_same(run_cut(of, cut, micros=2), run_plain(of, micros=2), rtol=1e-10)
    with torch.no_grad():
        expected = of.fresh()[0].eval()(*of.batch.inputs)
    torch.testing.assert_close(predict_cut(of, cut), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", SPECTRAL)
def test_a_model_that_is_not_cut_keeps_pairs_of_numbers_at_even_places(name: str) -> None:
    of = subject(name, torch.float32)
    worker = UncutWorker(*of.fresh())
    assert any(parameter.numel() % 2 for parameter in worker.parameters.values())
    loss = worker.step(of.batch, STEP)
    plain = run_plain(of)
    assert loss == plain.loss
    assert all(torch.equal(parameter.grad, plain.gradients[n]) for n, parameter in worker.parameters.items())  # type: ignore[arg-type]


def test_a_leaf_module_may_view_its_parameters_as_complex_numbers() -> None:
    of = subject("fourier operator", torch.float32)
    model, loss = of.fresh()
    graph, constants = capture(model, loss, of.batch.inputs, of.batch.targets, leaf_modules=["spectral"])
    parts = programs(lower_cut(graph, one_machine_cut(graph)), training=True)
    assert LeafModules.where_needed(parts, lambda: StepModule(model, loss)) is not None
    with Replica(parts, model=model, loss=loss) as replica:
        replica.load(collect_state(*of.fresh(), constants).__getitem__)
        with torch.random.fork_rng():
            torch.manual_seed(mask_seed(0, STEP, 0))
            assert replica.step(of.batch, STEP) == run_plain(of).loss
        for name, gradient in replica.gradients().items():
            torch.testing.assert_close(gradient, run_plain(of).gradients[name])
