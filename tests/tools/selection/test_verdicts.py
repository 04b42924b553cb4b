"""Verdicts: who is answered when, where all replicas evaluate after the same step, and where some leave steps out."""

from pathlib import Path
from typing import Any

from places import USER_MODELS

from cutset.runtime.channel.message import Message
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.selection.verdicts import Verdicts


def make(tmp_path: Path, stopped: list[int], *, stop: bool) -> Verdicts:
    config = RunConfig(
        f"{USER_MODELS / 'good.py'}:task", method="sync:backups=1", replicas=3, baseline=False, out=tmp_path / "run"
    )
    return Verdicts(prepare(config), stop_requested=lambda: stop, on_stop=stopped.append, on_notice=stopped.append)


def ask(verdicts: Verdicts, sender: str, step: int, **body: int) -> None:
    verdicts.handle(Message("await_verdict", step, body=body, sender=sender))


def answers(verdicts: Verdicts) -> list[tuple[str, int, Any]]:
    return [(name, message.step, message.body["must_stop"]) for name, message in verdicts.take_replies([])]


def test_replicas_that_leave_steps_out_are_told_of_the_evaluation_that_was_due(tmp_path: Path) -> None:
    """Evaluations are due after steps 9 and 19. Replica 0 comes to 9 late, as 10; replica 2 has gone on to 11."""
    verdicts = make(tmp_path, [], stop=False)
    ask(verdicts, "worker-1.0", 9, due=9)
    ask(verdicts, "worker-2.0", 11, due=9)
    assert answers(verdicts) == []
    verdicts.handle(Message("evaluated", 10, sender="worker-0.0"))
    ask(verdicts, "worker-0.0", 10)
    assert answers(verdicts) == [("worker-1.0", 9, False), ("worker-2.0", 11, False), ("worker-0.0", 10, False)]
    ask(verdicts, "worker-1.0", 19, due=19)
    assert answers(verdicts) == [], "what is judged is the one before"
    ask(verdicts, "worker-0.0", 20)
    assert answers(verdicts) == [], "whoever evaluates waits for the verdict on that"
    verdicts.handle(Message("evaluated", 20, sender="worker-0.0"))
    assert answers(verdicts) == [("worker-1.0", 19, False), ("worker-0.0", 20, False)]


def test_all_are_told_to_end(tmp_path: Path) -> None:
    stopped = list[int]()
    verdicts = make(tmp_path, stopped, stop=True)
    ask(verdicts, "worker-2.0", 9, due=9)
    verdicts.handle(Message("evaluated", 10, sender="worker-0.0"))
    ask(verdicts, "worker-0.0", 10)
    assert answers(verdicts) == [("worker-2.0", 9, True), ("worker-0.0", 10, True)]
    assert stopped == [10]
