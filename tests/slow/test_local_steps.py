"""Methods whose replicas take steps of their own, with cut models and real processes."""

from pathlib import Path

import pytest
from local_steps import check_local_steps


@pytest.mark.parametrize(("method", "rounds"), [("easgd:every=10,alpha=0.4", 20), ("diloco:every=20,overlap=true", 12)])
def test_they_train_a_cut_model_and_save_what_the_shards_hold(tmp_path: Path, method: str, rounds: int) -> None:
    check_local_steps(tmp_path, method, rounds=rounds)
