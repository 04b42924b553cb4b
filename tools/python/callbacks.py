"""`Callback`: what a user has done while a run lasts; `CallbackThread` calls callbacks so that they hold up nothing."""

import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ...errors import BadInput
from ..blame import describe_error, locate
from ..run_listener import CheckpointReport, EvaluationReport, LossReport, RunListener, StepReport

BLOCKED_S = 30.0  # in one call, after which the user is told, and for which the end of the run waits


class Callback:
    """The base of a user's callbacks, each of whose methods may be left out.

    They are called one after the other, in a thread of their own: training does not wait for them. One that raises ends
    the training as `Trainer.stop` does, with all that was trained saved, and is the error of `fit`.
    """

    def on_step(self, report: StepReport) -> None:
        """Hear how far training is, some times a second; a slow callback hears of the last step alone."""

    def on_evaluate(self, report: EvaluationReport) -> None:
        """Hear of the scores of an evaluation."""

    def on_checkpoint(self, report: CheckpointReport) -> None:
        """Hear of a checkpoint that is complete, the last one included."""

    def on_machine_lost(self, report: LossReport) -> None:
        """Hear of a replica or a shard that was lost with a process or a machine, and is replaced where it can be."""


class CallbackThread(RunListener):
    """Calls the callbacks of one run while entered.

    callbacks: objects with some of the methods of `Callback`. on_notice: called with each sentence about the run.
    failure: the error of the callback that has raised, named by its line. folder: of the run, once it is known.
    """

    may_stop = True

    def __init__(self, callbacks: Sequence[Any], *, on_notice: Callable[[str], object]) -> None:
        self._callbacks, self._tell = list(callbacks), on_notice
        self._changed = threading.Condition()
        self._waiting = deque[tuple[str, Any]]()  # names of methods, and what they get
        self._calling: tuple[str, float] | None = None  # what is being called, and since when
        self._is_told = self._is_closed = self._stop = False
        self._thread = threading.Thread(target=self._run, name="cutset-callbacks", daemon=True)
        self.failure: BadInput | None = None
        self.folder: Path | None = None

    @property
    def stop_requested(self) -> bool:
        """Whether `stop` was called, or a callback has failed."""
        self._tell_of_blocked()
        return self._stop

    def stop(self) -> None:
        """Request that training ends early."""
        self._stop = True

    def on_begin(self, folder: Path) -> None:
        self.folder = folder

    def on_step(self, report: StepReport) -> None:
        with self._changed:
            if self._waiting and self._waiting[-1][0] == "on_step" and self._waiting[-1][1].run == report.run:
                self._waiting.pop()
        self._add("on_step", report)

    def on_evaluate(self, report: EvaluationReport) -> None:
        self._add("on_evaluate", report)

    def on_checkpoint(self, report: CheckpointReport) -> None:
        self._add("on_checkpoint", report)

    def on_machine_lost(self, report: LossReport) -> None:
        self._add("on_machine_lost", report)

    def on_notice(self, words: str) -> None:
        self._tell(words)

    def __enter__(self) -> "CallbackThread":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all was called, not much longer for one that does not return."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        while self._thread.is_alive():
            self._thread.join(timeout=0.1)
            if self._tell_of_blocked():
                return

    def _add(self, name: str, report: Any) -> None:
        with self._changed:
            self._waiting.append((name, report))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                name, report = self._waiting.popleft()
            for callback in list(self._callbacks):
                self._call(callback, name, report)

    def _call(self, callback: Any, name: str, report: Any) -> None:
        method = getattr(callback, name, None)
        if method is None:
            return
        what = f"{name} of the callback {_describe(callback, method)}"
        self._calling = what, time.monotonic()
        try:
            method(report)
        except BaseException as error:  # of the user, whatever it is: a thread would end by sys.exit() without a word
            self._callbacks.remove(callback)
            facts = f"{what} fails{locate(error)}: {describe_error(error)}"
            self.failure = self.failure or BadInput("E308", facts, fix="correct it there")
            self._stop = True
            self._tell(f"{facts}; it is called no more, and training ends early")
        finally:
            self._calling = None

    def _tell_of_blocked(self) -> bool:
        """Return whether a callback does not return, and tell the user once."""
        calling = self._calling
        if calling is None or time.monotonic() - calling[1] < BLOCKED_S:
            return False
        if not self._is_told:
            self._is_told = True
            self._tell(f"{calling[0]} has not returned for {BLOCKED_S:g} s; nothing is called until it does")
        return True


def _describe(callback: Any, method: Any) -> str:
    code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{type(callback).__name__}{where}"
