"""`Trainer`: the run that the command makes, callbacks that hear of it, and what it has afterwards."""

import json
import logging
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from places import USER_MODELS
from safetensors.torch import load_file

import cutset
from cutset.errors import BadInput, UsageError
from cutset.ps.checkpoint.manifest import Manifest
from cutset.ps.checkpoint.write_checkpoint import write_manifest
from cutset.tools.python import callbacks as callbacks_module
from cutset.tools.python.callbacks import CallbackThread
from cutset.tools.python.trainer import Trainer, join_outputs
from cutset.tools.samples.read_samples import read_split
from cutset.tools.task.load_task import TaskSpec, load_task

TASK = f"{USER_MODELS / 'good.py'}:task"
OPTIONS: dict[str, Any] = {"method": "sync", "replicas": 2, "lr": 0.1, "epochs": 4, "baseline": False}


class Recording(cutset.Callback):
    def __init__(self) -> None:
        self.heard = list[tuple[str, Any]]()
        self.threads = set[str]()

    def on_step(self, report: Any) -> None:
        self.heard.append(("step", report))
        self.threads.add(threading.current_thread().name)

    def on_evaluate(self, report: Any) -> None:
        self.heard.append(("evaluate", report))

    def on_checkpoint(self, report: Any) -> None:
        self.heard.append(("checkpoint", report))

    def of(self, kind: str) -> list[Any]:
        return [report for name, report in self.heard if name == kind]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Recording]:
    recording, path = Recording(), sys.path[:]
    folder = tmp_path_factory.mktemp("fitted") / "run"
    trainer = Trainer(TASK, callbacks=[recording], out=folder, checkpoint_every=5, monitor="test_accuracy", **OPTIONS)
    try:
        trainer.fit()
    finally:
        sys.path[:] = path
    return trainer, recording


@pytest.mark.run
def test_what_cannot_be_predicted_is_named(fitted: tuple[Trainer, Recording]) -> None:
    trainer, _ = fitted
    inputs = read_split(load_task(TaskSpec(TASK)), "test").rows(torch.arange(3)).inputs[0]
    for batch in (0, -1, 2.5):
        with pytest.raises(UsageError, match="E224: batch="):
            trainer.predict(inputs, batch=batch)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="E224: there are no samples"):
        trainer.predict(inputs[:0])
    with pytest.raises(cutset.CutsetError, match="inputs and targets must be tensors or arrays, not list"):
        trainer.predict([[1.0, 2.0]])
    with pytest.raises(cutset.CutsetError, match=r"E314: the model, run on 3 samples of float32\[1\], fails.*shapes"):
        trainer.predict(inputs.float().flatten(1)[:, :1])
    with pytest.raises(UsageError, match="E224: which="):
        trainer.evaluate(which=["best"])  # type: ignore[arg-type]


@pytest.mark.parametrize("callbacks", [None, cutset.Callback(), [Recording], "all"])
def test_callbacks_are_objects_in_a_list(callbacks: Any) -> None:
    with pytest.raises(UsageError, match="E224: callback"):
        Trainer(TASK, callbacks=callbacks, **OPTIONS)


@pytest.mark.run
def test_callbacks_hear_of_the_run_in_a_thread_of_their_own(fitted: tuple[Trainer, Recording]) -> None:
    trainer, recording = fitted
    assert trainer.result is not None
    curve = trainer.result["rows"][-1]["curve"]
    assert [one.test_loss for one in recording.of("evaluate")] == [point["test_loss"] for point in curve]
    assert len(curve) == 4
    last = recording.of("step")[-1]
    assert (last.run, last.step, last.steps, last.samples) == ("sync", 24, 24, 384)
    assert recording.threads == {"cutset-callbacks"}
    folders = [one.folder for one in recording.of("checkpoint")]
    assert folders[-1] == trainer.folder / "checkpoint"  # type: ignore[operator]
    assert [one.step for one in recording.of("checkpoint")] == [5, 10, 15, 20, 24]


@pytest.mark.run
def test_the_folder_is_that_of_the_command(fitted: tuple[Trainer, Recording], tmp_path: Path) -> None:
    """Whoever starts it, by the same options the same bytes are trained."""
    trainer, _ = fitted
    assert trainer.folder is not None
    cutset.train(**vars(replace(trainer.config, out=tmp_path / "again")))
    for name in ("model.safetensors", "best.safetensors", "initial.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (trainer.folder / name).read_bytes()
    left = [{path.name for path in folder.iterdir()} for folder in (tmp_path / "again", trainer.folder)]
    assert left[0] == left[1]
    configs = [json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "again", trainer.folder)]
    assert {**configs[0], "out": ""} == {**configs[1], "out": ""}


@pytest.mark.run
def test_afterwards_it_has_the_weights(fitted: tuple[Trainer, Recording]) -> None:
    trainer, recording = fitted
    assert trainer.folder is not None
    task = load_task(TaskSpec(TASK))
    tests = read_split(task, "test").rows(torch.arange(50))
    plain = task.build(seed=9)
    plain.load_state_dict(load_file(trainer.folder / "model.safetensors"))
    with torch.no_grad():
        expected = plain.eval()(*tests.inputs)
    assert trainer.predict(*tests.inputs, batch=7).equal(torch.cat([plain(part) for part in tests.inputs[0].split(7)]))
    assert torch.allclose(trainer.predict("test"), expected, atol=1e-6)
    assert trainer.state_dict().keys() == plain.state_dict().keys()
    assert trainer.evaluate()["loss"] == pytest.approx(recording.of("evaluate")[-1].test_loss, rel=1e-6)
    best = max(one.test_accuracy for one in recording.of("evaluate"))
    assert trainer.evaluate(which="best")["accuracy"] == best
    assert trainer.plan().machines[0].parameters == sum(p.numel() for p in plain.parameters())


@pytest.mark.run
def test_a_notebook_shows_result_and_plan(fitted: tuple[Trainer, Recording]) -> None:
    trainer, _ = fitted
    assert trainer.result is not None
    page = trainer.result._repr_html_()
    assert page.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts"' in page, "its script reaches nothing of the notebook"
    assert "Run of" in page
    assert "<script" not in page
    shown = trainer.plan()._repr_html_()
    assert "machine" in shown
    assert trainer.plan().verdict.split(".")[0] in shown


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    trainer = Trainer(TASK, out=tmp_path / "none", **OPTIONS)
    with pytest.raises(UsageError, match="nothing is trained"):
        trainer.evaluate()
    with pytest.raises(UsageError, match="last, best, ema"):
        trainer.state_dict(which="worst")
    with pytest.raises(UsageError, match="there is no option replica") as caught:
        Trainer(TASK, replica=2)
    assert caught.value.fix == "replicas=2"
    for callback in (print, None, cutset.Callback()):
        with pytest.raises(UsageError, match="has none of the methods that are called: on_step, on_evaluate"):
            Trainer(TASK, callbacks=[callback])
    assert list(cutset_signature())[:2] == ["task", "callbacks"]


def test_callbacks_are_objects_of_any_class() -> None:
    for callback in (SimpleNamespace(on_step=print), Raising(), Mock()):
        assert Trainer(TASK, callbacks=[callback]).callbacks == [callback]


def test_a_run_that_was_interrupted_can_be_gone_on_with(tmp_path: Path) -> None:
    write_manifest_of(tmp_path / "run" / "checkpoints" / "000001")
    trainer = Trainer(TASK, out=tmp_path / "run", **OPTIONS)
    with pytest.raises(UsageError, match=r"the training in .* was interrupted") as caught:
        trainer.state_dict()
    assert f"resume={str(tmp_path / 'run')!r}" in caught.value.fix


def write_manifest_of(folder: Path) -> None:
    folder.mkdir(parents=True)
    write_manifest(folder, Manifest([], [], [], [], {"samples": 8}))


def cutset_signature() -> Any:
    import inspect

    return inspect.signature(Trainer).parameters


class Raising(cutset.Callback):
    def on_evaluate(self, report: Any) -> None:
        raise ValueError("no such tracker")


@pytest.mark.slow
def test_a_callback_that_raises_ends_the_training_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording = Recording()
    options = {**OPTIONS, "epochs": 40}
    trainer = Trainer(TASK, callbacks=[Raising(), recording], out=tmp_path / "run", **options)
    with pytest.raises(BadInput, match=r"on_evaluate of the callback Raising .*test_trainer.py:\d+") as caught:
        trainer.fit()
    assert caught.value.code == "E308"
    assert "no such tracker" in caught.value.facts
    assert f"resume={str(tmp_path / 'run')!r}" in caught.value.fix
    assert trainer.result is not None
    assert trainer.result["rows"][-1]["samples"] < 96 * 40
    assert recording.of("evaluate"), "others are called on"
    assert "is called no more" in caplog.text
    again = Trainer(TASK, out=tmp_path / "run", resume=tmp_path / "run", **options)
    again.fit()
    assert again.result is not None
    assert again.result["rows"][-1]["samples"] == 96 * 40 - trainer.result["rows"][-1]["samples"]


def test_a_callback_that_exits_is_a_failure_too(tmp_path: Path) -> None:
    """Of a thread Python takes sys.exit() for its end, without a word."""

    class Leaving(cutset.Callback):
        def on_evaluate(self, report: Any) -> None:
            sys.exit("enough")

    told = list[str]()
    with CallbackThread([Leaving()], on_notice=told.append) as thread:
        thread.on_evaluate(object())  # type: ignore[arg-type]
    assert thread.stop_requested
    assert thread.failure is not None
    assert "SystemExit: enough" in thread.failure.facts
    assert len(told) == 1


class Output(NamedTuple):
    logits: torch.Tensor
    count: int


@dataclass
class Scored:
    loss: torch.Tensor
    outputs: Output
    more: dict[str, torch.Tensor | None]


def test_outputs_of_any_form_are_joined() -> None:
    rows = torch.arange(10.0).view(5, 2)
    parts = [Scored(part.mean(), Output(part, 7), {"a": part, "b": None}) for part in (rows[:3], rows[3:])]
    joined = join_outputs(parts)
    assert isinstance(joined, Scored)
    assert isinstance(joined.outputs, Output)
    assert torch.equal(joined.outputs.logits, rows)
    assert joined.outputs.count == 7
    assert torch.equal(joined.loss, torch.stack([rows[:3].mean(), rows[3:].mean()])), "one for each batch"
    assert joined.more["b"] is None
    assert torch.equal(parts[0].outputs.logits, rows[:3]), "what was joined stays as it was"


@pytest.mark.slow
def test_a_callback_may_end_the_training(tmp_path: Path) -> None:
    class Enough(cutset.Callback):
        def on_evaluate(self, report: Any) -> None:
            trainer.stop()

    trainer = Trainer(TASK, callbacks=[Enough()], out=tmp_path / "run", **{**OPTIONS, "epochs": 40})
    trainer.fit()
    assert trainer.result is not None
    assert trainer.result["rows"][-1]["samples"] < 96 * 40


def test_a_callback_that_blocks_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks_module, "BLOCKED_S", 0.2)
    caplog.set_level(logging.WARNING, "cutset")
    gate = threading.Event()

    class Blocking(cutset.Callback):
        def on_step(self, report: Any) -> None:
            gate.wait()

    trainer = Trainer(TASK, callbacks=[Blocking()], out=tmp_path / "run", **OPTIONS)
    result = trainer.fit()
    assert result["rows"][-1]["samples"] == 96 * 4
    assert caplog.text.count("on_step of the callback Blocking") == 1
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "cutset-callbacks":
            thread.join()
