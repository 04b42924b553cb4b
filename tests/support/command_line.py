"""The command `cutset` in this process, and how it ended."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from cutset.tools.commands import cli

USAGE, BAD_INPUT, INFEASIBLE, NETWORK, DIVERGED = 2, 3, 4, 5, 7


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Cutset = Callable[..., Outcome]


@pytest.fixture
def cutset(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cutset]:
    """Runs a command of the console script in this process."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "path", sys.path[:])

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["cutset", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, *capfd.readouterr())

    yield call
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def roleless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where training is left out, no process that imports torch for it is started while it is prepared."""
    for user in ("train", "commands.train_command"):
        monkeypatch.setattr(f"cutset.tools.{user}.open_early_host", lambda config: contextlib.nullcontext())


def refused(outcome: Outcome, exit_code: int, code: str, *said: str) -> None:
    """It ended with this exit code and error, the facts and the fix say `said`, and nothing else is printed."""
    assert outcome.code == exit_code, outcome
    assert "Traceback" not in outcome.err
    assert f"error {code}: " in outcome.err
    assert outcome.out == ""
    facts, _, fix = outcome.err.partition("\n  fix: ")
    assert fix.strip(), "no fix is offered"
    assert [words for words in said if words not in facts + fix] == []
