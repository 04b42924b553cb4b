"""A run that diverges stops, or is retried once with the rate over tau."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delayed_replicas import four_late_replicas
from listening import Listening
from places import USER_MODELS

from cutset.errors import Diverged
from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.rates import Scaled
from cutset.ps.optimizers.registry import AnyOptimizer
from cutset.ps.optimizers.standard import SGD
from cutset.tools.config.option_values import RETRY_SCALED, STOP
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.job import Job
from cutset.tools.job.prepare import prepare
from cutset.tools.train import run
from cutset.tools.training.run import run_with_divergence_retry

MODELS = USER_MODELS


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def options(tmp_path: Path) -> RunConfig:
    return RunConfig(
        f"{MODELS / 'good.py'}:task",
        method=Downpour(),
        optimizer=SGD(0.5),
        out=tmp_path / "run",
        on_divergence=RETRY_SCALED,
    )


class FailingTraining:
    """Trains by failing with these errors, one after the other."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.optimizers = list(errors), list[AnyOptimizer]()

    def __call__(self, job: Job) -> dict[str, Any]:
        self.optimizers.append(job.optimizer)
        if self.errors:
            raise self.errors.pop(0)
        return {"seconds": 1.0}


def diverged(where: str) -> Diverged:
    return Diverged("E701", f"the parameters on {where} ceased to be finite\nmore", fix="lower the rate: --lr 0.05")


def test_a_diverged_run_is_retried_with_the_rate_over_tau(options: RunConfig) -> None:
    notices: list[str] = []
    train = FailingTraining(diverged("shard-0"))
    job, outcome, retry = run_with_divergence_retry(prepare(options), train, notices.append)
    assert train.optimizers == [SGD(0.5), Scaled(SGD(0.5))]
    assert (job.optimizer, job.serving.optimizer) == (Scaled(SGD(0.5)), Scaled(SGD(0.5)))
    assert job.run == 2, "what it writes is later than what the first try has written"
    assert outcome == {"seconds": 1.0}
    assert retry is not None
    assert (
        notices
        == [retry.describe()]
        == [
            "It diverged: the parameters on shard-0 ceased to be finite. "
            "It was restarted from the initial weights with optimizer sgd/tau."
        ]
    )


def test_without_divergence_nothing_happens(options: RunConfig) -> None:
    job = prepare(options)
    assert run_with_divergence_retry(job, FailingTraining(), pytest.fail) == (job, {"seconds": 1.0}, None)


def test_a_diverged_run_stops_where_that_is_the_policy(options: RunConfig) -> None:
    train = FailingTraining(diverged("shard-0"))
    with pytest.raises(Diverged, match="shard-0"):
        run_with_divergence_retry(prepare(replace(options, on_divergence=STOP)), train, pytest.fail)
    assert train.optimizers == [SGD(0.5)]


def test_the_error_of_a_second_divergence_mentions_the_first(options: RunConfig) -> None:
    train = FailingTraining(diverged("shard-0"), diverged("shard-1"))
    with pytest.raises(Diverged, match=r"(?s)shard-1.*it had diverged with optimizer sgd before \(E701\)") as caught:
        run_with_divergence_retry(prepare(options), train, lambda words: None)
    assert caught.value.fix == "lower the rate: --lr 0.05"
    assert len(train.optimizers) == 2


def test_other_errors_are_not_caught(options: RunConfig) -> None:
    with pytest.raises(ZeroDivisionError):
        run_with_divergence_retry(prepare(options), FailingTraining(ZeroDivisionError()), pytest.fail)


@pytest.mark.slow
def test_a_rate_that_diverges_with_delay_converges_over_tau(tmp_path: Path) -> None:
    """Four replicas, each three updates late: steps of 90 % grow without end, those over tau do not."""
    options = four_late_replicas(tmp_path / "run", on_divergence=RETRY_SCALED)
    notices: list[str] = []
    result = run(prepare(options), Listening(on_notice=notices.append))
    assert result["test_accuracy"] == 1.0
    assert result["divergence_retry"]["code"] in ("E701", "E702")
    assert result["divergence_retry"]["optimizer"] == "sgd/tau"
    assert result["settings"]["optimizer"].startswith("Scaled(")
    assert result["rows"][-1]["rate"] < 0.4 < 0.45
    assert any("restarted from the initial weights with optimizer sgd/tau" in note for note in result["notes"])
    assert any("sgd/tau" in words for words in notices)
    json.dumps(result)
