"""The run that tests/tools/training/test_run.py retries with a scaled rate ends where no retry is asked for."""

import sys
from pathlib import Path

import pytest
from delayed_replicas import four_late_replicas

from cutset.errors import Diverged
from cutset.tools.config.option_values import STOP
from cutset.tools.job.prepare import prepare
from cutset.tools.train import run


def test_a_rate_that_diverges_with_delay_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(Diverged) as caught:
        run(prepare(four_late_replicas(tmp_path / "run", on_divergence=STOP)))
    assert caught.value.code in ("E701", "E702")
