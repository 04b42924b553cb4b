"""Methods whose replicas take steps of their own, with cut models and real processes."""

from pathlib import Path

from local_steps import check_local_steps


def test_they_train_a_cut_model_and_save_what_the_shards_hold(tmp_path: Path) -> None:
    """tests/slow/test_local_steps.py: DiLoCo too."""
    check_local_steps(tmp_path, "easgd:every=10,alpha=0.4", rounds=20)
