"""How many samples a portion has, where nobody says it, and which samples are left out."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.errors import UsageError
from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import SGD
from cutset.ps.sandblaster.solver import Portions
from cutset.ps.methods.sandblaster import PORTIONS, Sandblaster
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.job.portion_size import FOLDER, left_out, portion, portions_of, with_portions
from cutset.tools.job.prepare import Options

GOOD = f"{Path(__file__).parent / 'user_models' / 'good.py'}:task"  # 96 samples, its batch 8


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(TaskSpec(GOOD), Sandblaster(), SGD(0.5), tmp_path / "run")


# Sizes


@given(st.integers(1, 100_000), st.integers(1, 500))
def test_a_portion_is_large_enough_and_leaves_as_few_over_as_it_can(samples: int, least: int) -> None:
    size = portion(samples, least)
    enough = min(samples, max(least, -(-samples // PORTIONS)))
    assert enough <= size <= min(2 * enough, samples)
    assert Portions(samples, size).count <= PORTIONS
    over = samples % size
    for other in range(enough, min(2 * enough, samples) + 1):
        assert (over, size) <= (samples % other, other)


@pytest.mark.parametrize(
    ("samples", "least", "size"),
    [(96, 8, 8), (1437, 20, 35), (60_000, 32, 240), (7, 20, 7), (1, 1, 1), (97, 8, 8), (99, 8, 9), (1000, 1, 4)],
)
def test_sizes(samples: int, least: int, size: int) -> None:
    assert portion(samples, least) == size


# Options


def test_where_nothing_is_said_the_options_get_a_size(options: Options) -> None:
    made = with_portions(options, load_task(options.spec))
    assert made.spec.batch == 8
    assert replace(made, spec=options.spec) == options


def test_a_size_that_was_said_stays(options: Options) -> None:
    said = replace(options, spec=TaskSpec(GOOD, batch=13))
    assert with_portions(said, load_task(said.spec)) is said


def test_other_methods_have_no_portions(options: Options) -> None:
    other = replace(options, method=Downpour())
    assert with_portions(other, load_task(other.spec)) is other


def test_any_number_of_replicas_has_the_same_portions(options: Options) -> None:
    sizes = {with_portions(replace(options, replicas=n), load_task(options.spec)).spec.batch for n in (1, 2, 7)}
    assert sizes == {8}


def test_a_placement_has_its_own_size(options: Options, mlp) -> None:
    placed = replace(options, placement=mlp)
    assert with_portions(placed, load_task(placed.spec)) is placed


def test_a_run_that_goes_on_has_the_portions_that_it_is_given(options: Options, tmp_path: Path) -> None:
    before = tmp_path / "before"
    (before / FOLDER).mkdir(parents=True)
    made = with_portions(replace(options, resume=before), load_task(options.spec))
    assert (made.resume, made.spec.batch) == (before, 8)


def test_a_folder_of_another_method_is_not_gone_on_from(options: Options, tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    with pytest.raises(UsageError, match=f"before has no folder '{FOLDER}'") as caught:
        with_portions(replace(options, resume=before), load_task(options.spec))
    assert (caught.value.code, caught.value.fix[:6]) == ("E295", "--init")


# Runs


def job(samples: int, size: int, *, cut: bool):
    """As much of a prepared run as is looked at."""
    return SimpleNamespace(
        course=SimpleNamespace(batch=size, samples=samples), programs=["of a machine"] if cut else []
    )


def test_an_uncut_model_sees_all_samples() -> None:
    assert portions_of(job(100, 8, cut=False)) == Portions(100, 8)
    assert left_out(job(100, 8, cut=False)) == []
    assert portions_of(job(100, 8, cut=False)).within(12, 13) == 4


def test_a_cut_model_takes_whole_portions_alone_and_says_so() -> None:
    assert portions_of(job(100, 8, cut=True)) == Portions(96, 8)
    assert left_out(job(100, 8, cut=True)) == [
        "The last 4 of 100 samples are left out: a cut model takes portions of 8."
    ]


def test_where_portions_are_whole_none_is_left_out() -> None:
    for cut in (True, False):
        assert portions_of(job(96, 8, cut=cut)) == Portions(96, 8)
        assert left_out(job(96, 8, cut=cut)) == []


@given(st.integers(1, 5000), st.integers(1, 300))
def test_portions_share_out_the_samples(samples: int, size: int) -> None:
    portions = Portions(samples, size)
    each = [portions.within(n, n + 1) for n in range(portions.count)]
    assert sum(each) == portions.within(0, portions.count) == samples
    assert set(each[:-1]) <= {size}
    assert 1 <= each[-1] <= size
