"""What runs have shown is folded in, little by little and within bounds."""

import pytest

from cutset.partition.cluster.machines import uniform_cluster
from cutset.tools.measured.learning import MAX_FACTOR, MIN_FACTOR, fold_in
from cutset.tools.measured.saved_probe import MachineKey, make_saved_probe

SAVED = make_saved_probe(MachineKey("h", "c", 2, "t", "v", 1), uniform_cluster(2), busy=0.0, seconds=1.0)


def test_runs_that_agree_bring_predictions_to_what_they_took():
    saved, true = SAVED, 2.0
    for _ in range(8):
        said = saved.learned.get("loss", (1.0, 1.0))[0]
        saved = fold_in(saved, {"loss": (true / said, 1.0)}, true / saved.learned_link)
    assert saved.learned["loss"] == (pytest.approx(true, rel=0.02), 1.0)
    assert saved.learned_link == pytest.approx(true, rel=0.02)


def test_one_disturbed_run_does_not_matter_long():
    saved = fold_in(SAVED, {"loss": (4.0, 1.0)}, None)
    assert saved.learned["loss"] == (2.0, 1.0)
    assert saved.learned_link == 1.0


def test_what_is_learnt_has_bounds():
    saved = SAVED
    for _ in range(20):
        saved = fold_in(saved, {"loss": (10.0, 0.1)}, None)
    assert saved.learned["loss"] == (MAX_FACTOR, MIN_FACTOR)
