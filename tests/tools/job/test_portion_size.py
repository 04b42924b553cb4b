"""How many samples a portion has, where nobody says it, and which samples are left out."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import USER_MODELS

from cutset.errors import UsageError
from cutset.partition.placement.placement_file import Placement
from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.sandblaster import MAX_PORTIONS, Sandblaster
from cutset.ps.sandblaster.solver import Portions
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.portion_size import FOLDER, choose_portion_size, describe_left_out, portions_of_job
from cutset.tools.job.prepare import settle_batch
from cutset.tools.task.load_task import load_task

GOOD = f"{USER_MODELS / 'good.py'}:task"  # 96 samples, its batch 8


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig(GOOD, method=Sandblaster(), out=tmp_path / "run")


# Sizes


@given(st.integers(1, 100_000), st.integers(1, 500))
def test_a_portion_is_large_enough_and_leaves_as_few_over_as_it_can(samples: int, least: int) -> None:
    size = choose_portion_size(samples, least)
    enough = min(samples, max(least, -(-samples // MAX_PORTIONS)))
    assert enough <= size <= min(2 * enough, samples)
    assert Portions(samples, size).count <= MAX_PORTIONS
    over = samples % size
    for other in range(enough, min(2 * enough, samples) + 1):
        assert (over, size) <= (samples % other, other)


@pytest.mark.parametrize(
    ("samples", "least", "size"),
    [(96, 8, 8), (1437, 20, 35), (60_000, 32, 240), (7, 20, 7), (1, 1, 1), (97, 8, 8), (99, 8, 9), (1000, 1, 4)],
)
def test_sizes(samples: int, least: int, size: int) -> None:
    assert choose_portion_size(samples, least) == size


# Batches


def batch_of(config: RunConfig) -> int | None:
    return settle_batch(config, config.task_spec, load_task(config.task_spec)).batch


def test_where_nothing_is_said_the_batch_is_a_portion(config: RunConfig) -> None:
    assert batch_of(config) == 8
    spec = settle_batch(config, config.task_spec, load_task(config.task_spec))
    assert msgspec.structs.replace(spec, batch=None) == config.task_spec


def test_a_size_that_was_said_stays(config: RunConfig) -> None:
    assert batch_of(replace(config, batch=13)) == 13


def test_other_methods_have_no_portions(config: RunConfig) -> None:
    assert batch_of(replace(config, method=Downpour())) is None


def test_any_number_of_replicas_has_the_same_portions(config: RunConfig) -> None:
    assert {batch_of(replace(config, replicas=n)) for n in (1, 2, 7)} == {8}


def test_a_placement_has_its_own_size(config: RunConfig, mlp: Placement) -> None:
    assert batch_of(replace(config, placement=mlp)) is None


def test_a_run_that_resumes_has_the_portions_that_it_is_given(config: RunConfig, tmp_path: Path) -> None:
    before = tmp_path / "before"
    (before / FOLDER).mkdir(parents=True)
    assert batch_of(replace(config, resume=before)) == 8


def test_a_folder_of_another_method_cannot_be_resumed(config: RunConfig, tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    with pytest.raises(UsageError, match=f"before has no folder '{FOLDER}'") as caught:
        batch_of(replace(config, resume=before))
    assert (caught.value.code, caught.value.fix[:6]) == ("E295", "--init")


# Runs


def job(samples: int, size: int, *, cut: bool):
    """As much of a prepared run as is looked at."""
    return SimpleNamespace(
        training=SimpleNamespace(batch=size, samples=samples), programs=["of a machine"] if cut else []
    )


def test_an_uncut_model_sees_all_samples() -> None:
    assert portions_of_job(job(100, 8, cut=False)) == Portions(100, 8)
    assert describe_left_out(job(100, 8, cut=False)) == []
    assert portions_of_job(job(100, 8, cut=False)).count_samples(12, 13) == 4


def test_a_cut_model_takes_whole_portions_alone_and_says_so() -> None:
    assert portions_of_job(job(100, 8, cut=True)) == Portions(96, 8)
    assert describe_left_out(job(100, 8, cut=True)) == [
        "The last 4 of 100 samples are left out: a cut model takes portions of 8."
    ]


def test_where_portions_are_whole_none_is_left_out() -> None:
    for cut in (True, False):
        assert portions_of_job(job(96, 8, cut=cut)) == Portions(96, 8)
        assert describe_left_out(job(96, 8, cut=cut)) == []


@given(st.integers(1, 5000), st.integers(1, 300))
def test_portions_share_out_the_samples(samples: int, size: int) -> None:
    portions = Portions(samples, size)
    each = [portions.count_samples(n, n + 1) for n in range(portions.count)]
    assert sum(each) == portions.count_samples(0, portions.count) == samples
    assert set(each[:-1]) <= {size}
    assert 1 <= each[-1] <= size
