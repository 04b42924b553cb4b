"""A run that could not restart with a rate over tau is refused before it starts."""

import sys
from pathlib import Path

import pytest
from places import USER_MODELS

from cutset.errors import UsageError
from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.registry import AnyMethod, parse_method
from cutset.ps.optimizers.rates import Scaled
from cutset.ps.optimizers.registry import AnyOptimizer
from cutset.ps.optimizers.standard import SGD
from cutset.tools.config.option_values import RETRY_SCALED
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.divergence import check_divergence_policy
from cutset.tools.job.prepare import prepare


@pytest.mark.parametrize(
    ("method", "optimizer", "facts"),
    [
        (Downpour(), Scaled(SGD(0.1)), "as optimizer sgd/tau does already"),
        (parse_method("sync"), SGD(0.1), "method sync has none"),
        (parse_method("hogwild"), SGD(0.1), "method hogwild has none"),
    ],
)
def test_a_method_or_optimizer_that_cannot_is_refused(method: AnyMethod, optimizer: AnyOptimizer, facts: str) -> None:
    with pytest.raises(UsageError, match=facts) as caught:
        check_divergence_policy(RETRY_SCALED, method, optimizer, 2, 10)
    assert (caught.value.code, caught.value.fix) == ("E285", "--on-divergence stop")


def test_a_job_is_checked_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    task, out = f"{USER_MODELS / 'good.py'}:task", tmp_path / "run"
    config = RunConfig(task, method=parse_method("sync"), optimizer=SGD(0.5), out=out, on_divergence=RETRY_SCALED)
    with pytest.raises(UsageError, match="divides the rate by the staleness"):
        prepare(config)
