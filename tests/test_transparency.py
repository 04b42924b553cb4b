"""A cut changes nothing: loss, gradients, statistics and predictions are those of plain torch, for every cut.

One machine gives the same bits. On several the sums are added up in another order, which float64 shows as rounding of
1e-11 at most; so nearly everything here runs in float64, and a few models in float32 besides.
"""

import pytest
import torch
from cutting import (
    DOUBLE,
    assert_same,
    cuts,
    deferring,
    finest_cut,
    load,
    planned,
    predict_cut,
    recomputing,
    run_cut,
    run_plain,
    subject,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from marking import with_slow
from zoo import CASES, MORE_CASES

from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.cut import find_partial_ops, one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.placement.from_plan import plan_placement
from cutset.partition.placement.to_cut import cut_from_placement
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.dropout_masks import mask_seed
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.schedule import NAMES

TIGHT = 1e-11
ALL = [*CASES, *MORE_CASES]
# the cheapest models that between them have every kind of exchange; the others run in `make slow`
QUICK = ["mlp", "conv", "local", "transformer_dropout", "running_mean", "siamese", "odd"]
QUICKEST = ["conv", "running_mean"]
ALL_BUT_SLOW = with_slow(QUICK, [name for name in ALL if name not in QUICK])


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("dtype", with_slow([torch.float64], [torch.float32]), ids=["float64", "float32"])
@pytest.mark.parametrize("name", ALL)
def test_one_machine_gives_the_same_bits(name: str, dtype: torch.dtype) -> None:
    of = subject(name, dtype)
    for micros in (1, 3):
        cut, plain = run_cut(of, one_machine_cut(of.graph), micros=micros), run_plain(of, micros=micros)
        assert_same(cut, plain, rtol=0.0 if of.exact else 1e-5)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("machines", with_slow([3], [2, 4]))
@pytest.mark.parametrize("name", with_slow(list(CASES)[:4], list(CASES)[4:]))
def test_every_planned_cut_trains_like_plain_torch(name: str, machines: int) -> None:
    of, found = subject(name), planned(name, machines)
    assert found
    for number, candidate in enumerate(found):
        micros = 1 + number % 2
        assert_same(run_cut(of, candidate.cut, micros=micros), run_plain(of, micros=micros), rtol=TIGHT)


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", with_slow(list(MORE_CASES)[:4], list(MORE_CASES)[4:]))
def test_planned_cuts_of_other_models_train_like_plain_torch(name: str) -> None:
    of = subject(name)
    for candidate in planned(name, 3):
        assert_same(run_cut(of, candidate.cut, micros=2), run_plain(of, micros=2), rtol=TIGHT)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", with_slow(QUICKEST, [name for name in ALL if name not in QUICKEST]))
def test_the_plan_that_is_saved_trains_like_plain_torch(name: str) -> None:
    of = subject(name)
    cut = cut_from_placement(plan_placement(of.graph, uniform_cluster(2), model=name), of.graph)
    assert_same(run_cut(of, cut), run_plain(of), rtol=TIGHT)


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", with_slow(QUICKEST, [name for name in ALL if name not in QUICKEST]))
def test_every_random_cut_trains_like_plain_torch(name: str) -> None:
    of = subject(name)

    @settings(max_examples=8 if name in CASES else 5, suppress_health_check=list(HealthCheck))
    @given(cut=cuts(of.graph), micros=st.sampled_from([1, 3]), later=st.booleans())
    def check(cut, micros, later) -> None:  # type: ignore[no-untyped-def]
        cut = deferring(of, cut, seed=micros) if later else cut
        assert_same(run_cut(of, cut, micros=micros), run_plain(of, micros=micros), rtol=TIGHT)

    check()


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", ALL_BUT_SLOW)
def test_all_loops_at_once_may_be_cut(name: str) -> None:
    of = subject(name)
    cut = finest_cut(of.graph, 3)
    assert find_partial_ops(of.graph, cut.boxes), "no sum is cut"
    assert_same(run_cut(of, cut), run_plain(of), rtol=TIGHT)


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", with_slow(QUICKEST, [name for name in ALL if name not in QUICKEST]))
def test_activations_that_are_made_again_change_nothing(name: str) -> None:
    of = subject(name)
    alone = recomputing(of, one_machine_cut(of.graph))
    assert_same(run_cut(of, alone, micros=2), run_plain(of, micros=2), rtol=0.0 if of.exact else 1e-5)
    for cut in (finest_cut(of.graph, 3), planned(name, 2)[0].cut, planned(name, 3)[-1].cut):
        again = recomputing(of, cut)
        assert again.recomputed
        assert_same(run_cut(of, again, micros=3), run_plain(of, micros=3), rtol=TIGHT)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", with_slow(QUICKEST, [name for name in ALL if name not in QUICKEST]))
def test_gradients_of_parameters_that_are_left_for_later_are_the_same(name: str) -> None:
    of = subject(name)
    alone = deferring(of, one_machine_cut(of.graph))
    assert_same(run_cut(of, alone, micros=2), run_plain(of, micros=2), rtol=TIGHT)
    for seed, cut in enumerate((finest_cut(of.graph, 3), planned(name, 2)[0].cut, planned(name, 3)[-1].cut)):
        for order in NAMES:
            later = deferring(of, cut, seed=seed)
            assert later.deferred or name == "siamese"  # whose layers run twice, with one set of parameters
            assert_same(run_cut(of, later, micros=3, order=order), run_plain(of, micros=3), rtol=TIGHT)


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", with_slow(["mlp", "conv"], ["local", "transformer_dropout"]))
def test_in_float32_the_cut_is_right_to_five_digits(name: str) -> None:
    of = subject(name, torch.float32)
    for candidate in planned(name, 4):
        assert_same(run_cut(of, candidate.cut), run_plain(of), rtol=1e-5, floor=0.05)


@pytest.mark.parametrize("name", with_slow(QUICKEST, [name for name in ALL if name not in QUICKEST]))
def test_a_cut_model_predicts_like_plain_torch(name: str) -> None:
    of = subject(name)
    model, _ = of.fresh()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(mask_seed(0, 3, 0))
        output = model.eval()(*of.batch.inputs)
    expected = output["out"] if isinstance(output, dict) else output
    for cut in (one_machine_cut(of.graph), planned(name, 3)[-1].cut, finest_cut(of.graph, 2)):
        torch.testing.assert_close(predict_cut(of, cut), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["conv", "causal", "running_mean", "siamese"])
def test_several_steps_of_sgd_and_then_a_prediction(name: str) -> None:
    of = subject(name)
    model, loss = of.fresh()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    spelled = lower_cut(of.graph, finest_cut(of.graph, 3))
    evaluated = lower_cut(of.evaluation, carry_cut(of.graph, spelled.cut, of.evaluation))
    with Replica(programs(spelled, training=True)) as replica:
        load(replica, of)
        for step in range(4):
            optimizer.zero_grad()
            with torch.random.fork_rng():
                torch.manual_seed(mask_seed(0, step, 0))
                expected = loss(model(*of.batch.inputs), *of.batch.targets)
            expected.backward()
            optimizer.step()
            assert replica.step(of.batch, step) == pytest.approx(expected.item(), rel=1e-10)
            for worker in replica.workers:
                worker.values.sub_(worker.gradients, alpha=0.1)
        states = [worker.states for worker in replica.workers]
        parameters = replica.parameters()
    for parameter, tensor in model.named_parameters():
        if tensor.requires_grad:
            torch.testing.assert_close(parameters[parameter], tensor.detach(), rtol=1e-10, atol=1e-12)
    with Replica(programs(evaluated, training=False)) as replica, torch.no_grad():
        for worker, trained in zip(replica.workers, states, strict=True):
            for region, piece in worker.states.pieces.items():
                piece.copy_(trained.pieces[region])
        (output,) = replica.predict([of.batch])
        torch.testing.assert_close(output, model.eval()(*of.batch.inputs), rtol=1e-10, atol=1e-12)


@pytest.mark.run
def test_random_numbers_depend_on_seed_and_step_and_not_on_the_cut() -> None:
    of = subject("transformer_dropout")
    losses = {seed: run_cut(of, one_machine_cut(of.graph), seed=seed).loss for seed in (0, 1)}
    assert losses[0] != losses[1]
    assert run_cut(of, finest_cut(of.graph, 2), seed=1).loss == pytest.approx(losses[1], rel=TIGHT)
    assert of.dtype is DOUBLE
