"""TensorBoard's own reader finds losses and scores in the events."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from cutset.errors import UsageError
from cutset.tools.run_folder import EVENTS
from cutset.tools.run_listener import EvaluationReport, StepReport
from cutset.tools.tracking.event_files import EventFiles
from cutset.tools.tracking.listeners import Listeners


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_them(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with EventFiles(tmp_path) as files:
        both = Listeners([files])
        for step in range(3):
            both.on_step(StepReport("one process", step, 3, 1.0 - step / 10, step * 8))
        both.on_step(StepReport("one process", 3, 3, None, 24))
        both.on_evaluate(EvaluationReport("one process", 24, 0.1, None, 0.75, {"f1": 0.5}))
    events = EventAccumulator(str(tmp_path / EVENTS / "one-process"))
    events.Reload()
    assert [(one.step, round(one.value, 3)) for one in events.Scalars("loss")] == [(0, 1.0), (8, 0.9), (16, 0.8)]
    assert {tag: events.Scalars(tag)[0].value for tag in ("test_accuracy", "f1")} == {"test_accuracy": 0.75, "f1": 0.5}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_evaluation_without_any_score_writes_nothing(tmp_path: Path) -> None:
    with EventFiles(tmp_path) as files:
        files.on_evaluate(EvaluationReport("sync", 24, 0.1, None, None, {}))
    assert not (tmp_path / EVENTS).exists()


def test_where_it_is_not_installed_the_option_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def load(name: str, *more: Any) -> Any:
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError("no module named tensorboard")
        return original(name, *more)

    monkeypatch.setattr(builtins, "__import__", load)
    with pytest.raises(UsageError, match="pip install tensorboard") as caught:
        EventFiles(tmp_path)
    assert caught.value.code == "E294"
