"""Divergence: a run stops, or begins once more with the rate over tau and says so."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delayed_replicas import four_late_replicas

from cutset.errors import Diverged, UsageError
from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import SGD
from cutset.ps.methods.registry import AnyMethod, method
from cutset.ps.optimizers.registry import AnyRule, Scaled
from cutset.tools.training.divergence_restart import DAMP, STOP, demand_possible, run_damped
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.job.prepare import Options, Prepared, prepare
from cutset.tools.train import run

MODELS = Path(__file__).parent / "user_models"


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(TaskSpec(f"{MODELS / 'good.py'}:task"), Downpour(), SGD(0.5), tmp_path / "run", on_divergence=DAMP)


class Trainer:
    """Trains by failing with these errors, one after the other."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.rules = list(errors), list[AnyRule]()

    def __call__(self, job: Prepared) -> dict[str, Any]:
        self.rules.append(job.options.rule)
        if self.errors:
            raise self.errors.pop(0)
        return {"seconds": 1.0}


def diverged(where: str) -> Diverged:
    return Diverged("E701", f"the parameters on {where} ceased to be finite\nmore", fix="lower the rate: --lr 0.05")


def test_a_run_that_diverges_begins_once_more_with_the_rate_over_tau(options: Options) -> None:
    said: list[str] = []
    train = Trainer(diverged("shard-0"))
    job, outcome, damped = run_damped(prepare(options), train, said.append)
    assert train.rules == [SGD(0.5), Scaled(SGD(0.5))]
    assert (job.options.rule, job.serving.rule) == (Scaled(SGD(0.5)), Scaled(SGD(0.5)))
    assert outcome == {"seconds": 1.0}
    assert damped is not None
    assert (
        said
        == [damped.in_words()]
        == [
            "It diverged: the parameters on shard-0 ceased to be finite. "
            "It was started again from the first weights with rule sgd/tau."
        ]
    )


def test_without_divergence_nothing_happens(options: Options) -> None:
    job = prepare(options)
    assert run_damped(job, Trainer(), pytest.fail) == (job, {"seconds": 1.0}, None)


def test_it_stops_where_that_is_asked_for(options: Options) -> None:
    train = Trainer(diverged("shard-0"))
    with pytest.raises(Diverged, match="shard-0"):
        run_damped(prepare(replace(options, on_divergence=STOP)), train, pytest.fail)
    assert train.rules == [SGD(0.5)]


def test_a_second_divergence_is_an_error_that_tells_of_the_first(options: Options) -> None:
    train = Trainer(diverged("shard-0"), diverged("shard-1"))
    with pytest.raises(Diverged, match=r"(?s)shard-1.*it had diverged with rule sgd before \(E701\)") as caught:
        run_damped(prepare(options), train, lambda words: None)
    assert caught.value.fix == "lower the rate: --lr 0.05"
    assert len(train.rules) == 2


def test_other_errors_are_not_caught(options: Options) -> None:
    with pytest.raises(ZeroDivisionError):
        run_damped(prepare(options), Trainer(ZeroDivisionError()), pytest.fail)


@pytest.mark.parametrize(
    ("wished", "by", "with_rule", "facts"),
    [
        ("explode", Downpour(), SGD(0.1), "--on-divergence explode; it is stop or damp"),
        (DAMP, Downpour(), Scaled(SGD(0.1)), "as rule sgd/tau does already"),
        (DAMP, method("sync", {}), SGD(0.1), "method sync has none"),
        (DAMP, method("hogwild", {}), SGD(0.1), "method hogwild has none"),
    ],
)
def test_what_cannot_be_damped_is_said_before_it_starts(
    wished: str, by: AnyMethod, with_rule: AnyRule, facts: str
) -> None:
    with pytest.raises(UsageError, match=facts) as caught:
        demand_possible(wished, by, with_rule, 2, 10)
    assert (caught.value.code, caught.value.fix) == ("E285", "--on-divergence stop")


def test_a_job_is_checked_before_it_starts(options: Options) -> None:
    with pytest.raises(UsageError, match="divides the rate by the staleness"):
        prepare(replace(options, method=method("sync", {})))


def test_a_rate_that_diverges_with_delay_is_damped(tmp_path: Path) -> None:
    """Four replicas, each three updates late: steps of 90 % grow without end, those over tau do not."""
    options = four_late_replicas(tmp_path / "run", on_divergence=DAMP)
    said: list[str] = []
    result = run(prepare(options), lambda *progress: None, note=said.append)
    assert result["test_accuracy"] == 1.0
    assert result["damped"]["code"] in ("E701", "E702")
    assert result["damped"]["rule"] == "sgd/tau"
    assert result["settings"]["rule"].startswith("Scaled(")
    assert result["rows"][-1]["rate"] < 0.4 < 0.45
    assert any("started again from the first weights with rule sgd/tau" in note for note in result["notes"])
    assert any("sgd/tau" in words for words in said)
    json.dumps(result)
