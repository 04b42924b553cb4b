"""Cuts through recurrent nets change nothing: loss, gradients and predictions are those of plain torch.

In their unrolled form the order of sums is another one than in torch's, which float64 shows as rounding.
"""

from dataclasses import replace

import pytest
import torch
from candidate_cuts import candidates
from cutting import assert_same, finest_cut, predict_cut, random_cut, run_cut, run_plain
from marking import with_slow
from recurrent_nets import RECURRENT, unrolled, whole

from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.cut import one_machine_cut

NEAR = 1e-9
QUICK = ["language_model", "gru", "cells"]
NAMES = with_slow(QUICK, [name for name in RECURRENT if name not in QUICK])
PLANNED = [(name, machines) for name in QUICK for machines in (2, 3, 4)]

# One process has them all, since a capture is made once for all tests of a model.
pytestmark = pytest.mark.xdist_group("recurrent_nets")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_unrolled_form_trains_like_plain_torch(name: str) -> None:
    of = unrolled(name)
    assert all(op.is_cuttable for op in of.graph.ops if op.flops and op.nest.loops)
    for micros in (1, 2):
        assert_same(run_cut(of, one_machine_cut(of.graph), micros=micros), run_plain(of, micros=micros), rtol=NEAR)


@pytest.mark.run
@pytest.mark.parametrize("name", with_slow(["language_model"], ["gru"]))
def test_whole_one_machine_has_the_bits_of_plain_torch(name: str) -> None:
    for dtype in (torch.float64, torch.float32):
        of = whole(name, dtype)
        assert_same(run_cut(of, one_machine_cut(of.graph)), run_plain(of), rtol=0.0)


@pytest.mark.parametrize(
    ("name", "machines"),
    with_slow([("language_model", 3)], [each for each in PLANNED if each != ("language_model", 3)]),
)
def test_every_planned_cut_trains_like_plain_torch(name: str, machines: int) -> None:
    of = unrolled(name)
    found = list(candidates(of.graph, uniform_cluster(machines)))
    assert found
    for number, candidate in enumerate(found):
        micros = 1 + number % 2
        assert_same(run_cut(of, candidate.cut, micros=micros), run_plain(of, micros=micros), rtol=NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_slow(["gru"], [name for name in RECURRENT if name != "gru"]))
def test_all_loops_at_once_may_be_cut(name: str) -> None:
    of = unrolled(name)
    for cut in (finest_cut(of.graph, 3), random_cut(of.graph, 4, range(7, 7 + len(of.graph.ops)))):
        assert_same(run_cut(of, cut), run_plain(of), rtol=NEAR)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_cut_model_predicts_like_plain_torch(name: str) -> None:
    of = unrolled(name)
    model, _ = of.fresh()
    with torch.no_grad():
        expected = model.eval()(*of.batch.inputs)
    torch.testing.assert_close(predict_cut(of, finest_cut(of.graph, 3)), expected, rtol=NEAR, atol=1e-11)


@pytest.mark.slow
def test_in_float32_dropout_draws_the_masks_of_torch() -> None:
    of = unrolled("language_model", torch.float32)
    assert_same(run_cut(of, finest_cut(of.graph, 3)), run_plain(of), rtol=1e-5, floor=0.05)


@pytest.mark.run
@pytest.mark.parametrize("wave", with_slow([2], [1, 5]))
@pytest.mark.parametrize("name", with_slow(["language_model"], ["lstm_both_ways", "gru", "cells"]))
def test_waves_change_nothing(name: str, wave: int) -> None:
    of = unrolled(name)
    for number, candidate in enumerate(candidates(of.graph, uniform_cluster(2))):
        if number % 3 == 0:
            cut = replace(candidate.cut, wave=wave)
            assert_same(run_cut(of, cut, micros=2), run_plain(of, micros=2), rtol=NEAR)
    torch.testing.assert_close(
        predict_cut(of, replace(finest_cut(of.graph, 3), wave=wave)),
        predict_cut(of, one_machine_cut(of.graph)),
        rtol=NEAR,
        atol=1e-11,
    )
