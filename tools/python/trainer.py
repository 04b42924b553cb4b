"""`Trainer`: trains a task from Python, hears of it by callbacks, and then evaluates, predicts, and has the weights."""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UsageError
from ...models.task import Data, TaskError, call_by_name
from ...partition.ir.autocast import autocast_context
from ...partition.ir.pytree import flatten
from ...partition.placement.placement_file import Placement
from ..blame import blame
from ..config.run_config import RunConfig
from ..evaluation.evaluate import check_split, evaluate
from ..hosts.engine import serve_if_member
from ..job.checkpoint_order import order_checkpoints
from ..report.notebook import RunResult
from ..run_folder import BEST_WEIGHTS, EMA_WEIGHTS, RESULT, WEIGHTS
from ..samples.batch_maker import describe_samples
from ..samples.read_samples import read_split
from ..task import weight_source as weights
from ..task.capture_task import capture_task
from ..task.load_task import build_model, load_task, refuse_while_importing
from ..task.plan_request import PlanRequest
from ..task.plan_task import micro_batch_spec, plan_task
from ..train import train_and_save
from .callbacks import Callback, CallbackThread

_LOG = logging.getLogger("cutset")
_WEIGHTS = {"last": WEIGHTS, "best": BEST_WEIGHTS, "ema": EMA_WEIGHTS}
_FIXES = {
    "last": "train again",
    "best": 'Trainer(..., monitor="test_loss")',
    "ema": "Trainer(..., ema=0.999)",
}


class Trainer:
    """Trains a task with the options of `cutset train`, and leaves the run folder that the command leaves.

    task: its name, "file.py:factory", or the function that makes it, of a file or a notebook. callbacks: objects with
    some of the methods of `cutset.Callback`. options: those of the command, in Python's spelling: replicas=2, lr=0.1.
    What happens during the run, restarts and the like, goes to the logger "cutset", too.

    Attributes:
        config: the options.
        folder: the run folder, of the last `fit`, or as `out` names it; None before there is any.
        result: of the last `fit`, as a dict; a notebook shows it as the report.
    """

    def __init__(self, task: str | Callable[..., Any], *, callbacks: Sequence[Any] = (), **options: Any) -> None:
        _check_options(options)
        self.config = RunConfig(task, **options)
        self.callbacks = _check_callbacks(callbacks)
        self.folder = None if self.config.out is None else Path(self.config.out)
        self.result: RunResult | None = None
        self._running: CallbackThread | None = None
        self._is_complete = True  # what is in the folder, unless a run of ours was interrupted there

    def fit(self) -> RunResult:
        """Train, and return the result. Raises `cutset.CutsetError`; that of a callback only after all is saved.

        Another call trains again, in a new folder unless `out` names one. With on="env", in a process that torchrun has
        started with another rank than 0, the result is empty.
        """
        refuse_while_importing("Trainer.fit")
        if serve_if_member(self.config.on):
            return RunResult({})
        with CallbackThread(self.callbacks, on_notice=_LOG.warning) as running:
            self._running, self._is_complete = running, False
            try:
                self.result = train_and_save(self.config, running)
                self._is_complete = True
            finally:
                self._running = None
                self.folder = running.folder or self.folder  # also of a run that was interrupted
        if running.failure is not None:
            fix = f"{running.failure.fix}; with resume={str(self.folder)!r} training goes on"
            raise type(running.failure)(running.failure.code, running.failure.facts, fix=fix)
        return self.result

    def stop(self) -> None:
        """End the training early, from a callback or another thread; `fit` returns as usual.

        Where replicas lease batches (downpour, ssp, easgd), those leased are completed; else the next evaluation is the
        last. All is saved as at a regular end, and the run can be resumed.
        """
        if self._running is not None:
            self._running.stop()

    def plan(self) -> Placement:
        """Return the cut of the model that `fit` would train, which a notebook shows."""
        spec, request = self.config.task_spec, self.config.plan_request
        part = micro_batch_spec(spec, load_task(spec), request.micro_batches)
        return plan_task(capture_task(part), spec, request).placement

    def evaluate(self, split: str = "test", *, which: str = "last") -> dict[str, Any]:
        """Return the scores of the trained weights on a split: samples, loss, accuracy and metrics.

        which: "last" weights, the "best" where `monitor` is set, or their average where `ema` is.
        """
        return evaluate(self.config.task_spec, self._find(which), request=PlanRequest(), split=check_split(split))

    def state_dict(self, *, which: str = "last") -> dict[str, Tensor]:
        """Return the trained weights, as `load_state_dict` of the model takes them. which: see `evaluate`."""
        from safetensors.torch import load_file

        return load_file(self._find(which))

    def model(self, *, which: str = "last") -> nn.Module:
        """Return the whole model with the trained weights, in evaluation mode, in this process."""
        model, path = build_model(load_task(self.config.task_spec), seed=self.config.seed), self._find(which)
        with weights.open_weights(path) as source:
            weights.load_model(model, source, where=path)
        return model.eval()

    @torch.no_grad()
    def predict(self, inputs: Any, *, batch: int | None = None, which: str = "last") -> Any:
        """Return what the trained model gives for samples: tensors are joined along their first dimension.

        inputs: a tensor [samples, ...], several, or by name; or a `cutset.Data`, or the name of a split. batch: samples
        at a time, by default as the task says. The whole model computes, in this process.
        """
        if batch is not None and (not isinstance(batch, int) or batch < 1):
            raise UsageError("E224", f"batch={batch!r}; it is samples at a time, 1 or more", fix="leave batch out")
        task = load_task(self.config.task_spec)
        if isinstance(inputs, str):
            samples = read_split(task, check_split(inputs), one_shape=False)
        else:
            try:
                samples = inputs if isinstance(inputs, Data) else Data(inputs)
            except TaskError as error:
                raise UsageError("E224", f"predict: {error}", fix=error.fix) from error
        if not len(samples):
            raise UsageError("E224", "there are no samples to predict for", fix="give at least one")
        size, model = batch or self.config.batch or task.batch, self.model(which=which)
        outputs = []
        for start in range(0, len(samples), size):
            part = samples.rows(torch.arange(start, min(start + size, len(samples))))
            what = f"the model, run on {len(part)} samples of {describe_samples(part.inputs)},"
            fix = "give inputs like those it was trained on"
            with blame("E314", what, fix=fix), autocast_context(self.config.autocast or ""):
                outputs.append(call_by_name(model, part.inputs, part.names))
        return join_outputs(outputs)

    def _find(self, which: str) -> Path:
        """Return the file of the weights. UsageError where there are none."""
        if not isinstance(which, str) or which not in _WEIGHTS:
            raise UsageError("E224", f"which={which!r}; there are {', '.join(_WEIGHTS)}", fix='which="last"')
        if self._running is not None:
            raise UsageError("E276", "training has not ended", fix="ask for what was trained after fit()")
        if self.folder is None:
            raise UsageError("E276", "no run folder: nothing is trained", fix="call fit() before")
        if not self._is_complete or not (self.folder / RESULT).exists():
            if not order_checkpoints(self.folder).folders:
                raise UsageError("E276", f"{self.folder} has no result: nothing is trained", fix="call fit() before")
            fix = f"Trainer(..., resume={str(self.folder)!r}).fit() goes on from what was saved"
            raise UsageError("E276", f"the training in {self.folder} was interrupted", fix=fix)
        path = self.folder / _WEIGHTS[which]
        if not path.exists():
            raise UsageError("E276", f"{self.folder} has no {path.name}", fix=_FIXES[which])
        return path

    def __repr__(self) -> str:
        return f"Trainer({self.config.task_name}, {self.config.method}, folder={self.folder})"


def _check_callbacks(callbacks: Any) -> list[Any]:
    """Return the callbacks as a list. UsageError where they are none, or a class in place of an object of it."""
    fix = "callbacks=[MyCallback()]"
    if not isinstance(callbacks, Iterable) or isinstance(callbacks, str):
        raise UsageError("E224", f"callbacks={callbacks!r}; they are a list of objects", fix=fix)
    found = list(callbacks)
    classes = [one.__name__ for one in found if isinstance(one, type)]
    if classes:
        raise UsageError("E224", f"callback {classes[0]} is a class; callbacks are objects", fix=fix)
    methods = {name: method for name, method in vars(Callback).items() if name.startswith("on_")}
    for one in found:
        own = [getattr(one, name, empty) for name, empty in methods.items()]
        if all(getattr(method, "__func__", method) in methods.values() for method in own):
            facts = f"callback {one!r} has none of the methods that are called: {', '.join(methods)}"
            raise UsageError("E224", facts, fix="give it one of these")
    return found


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise UsageError where there is no option of a name."""
    known = ["callbacks", *inspect.signature(RunConfig).parameters]
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            fix = f"{near[0]}={options[name]!r}" if near else "help(cutset.Trainer) lists them"
            raise UsageError("E224", f"there is no option {name}", fix=fix)


def join_outputs(outputs: list[Any]) -> Any:
    """Return one output like those of all batches: tensors are joined along their first dimension.

    Of tensors without dimensions, as a loss is that the model computes, there is one element for each batch; of what is
    no tensor, the value of the first batch.
    """
    flat = [flatten(output) for output in outputs]
    leaves = [_join_tensors(parts) for parts in zip(*(leaves for leaves, _ in flat), strict=True)]
    return flat[0][1](leaves)


def _join_tensors(parts: Sequence[Any]) -> Any:
    if not isinstance(parts[0], Tensor):
        return parts[0]
    return torch.cat(parts) if parts[0].dim() else torch.stack(parts)  # type: ignore[arg-type]


def _make_signature() -> inspect.Signature:
    """Return the signature of `Trainer`: that of `RunConfig`, and callbacks."""
    task, *options = inspect.signature(RunConfig).parameters.values()
    own = inspect.signature(Trainer.__init__).parameters["callbacks"]
    return inspect.Signature([task, own, *options])


Trainer.__signature__ = _make_signature()  # type: ignore[attr-defined]
