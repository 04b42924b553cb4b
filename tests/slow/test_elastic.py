"""Replicas join and leave a run in which none may be far ahead, as tests/test_elastic.py has it."""

import sys
from pathlib import Path

import pytest
from elastic import check_joining_and_leaving

from cutset.ps.methods.ssp import SSP


@pytest.mark.slow
def test_replicas_join_and_leave_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    check_joining_and_leaving(tmp_path, SSP(2))
