"""DiLoCo with cut models and real processes, as tests/test_local_steps.py has EASGD."""

from pathlib import Path

from local_steps import check_local_steps


def test_it_trains_a_cut_model_and_saves_what_the_shards_hold(tmp_path: Path) -> None:
    check_local_steps(tmp_path, "diloco:every=20,overlap=true", rounds=12)
