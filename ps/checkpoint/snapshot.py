"""`Snapshot`: a shard's file as it is at one moment, written by a thread while the shard goes on.

A slice that is about to change is copied before it does; the others are copied when the thread has time for them. At
most a few copies wait for the disk; where the disk is slower than the pushes, those wait for it.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from torch import Tensor

from ...errors import CheckpointError
from .write_checkpoint import HEADER, Held, ShardHeader
from ..slices.slice_state import Holding
from ..optimizers.optimizer import Rule
from .streamed_safetensors import Layout, TensorWriter

WAITING_MOST = 8  # copied slices that are not written yet

T = TypeVar("T")


class Snapshot(Generic[T]):
    """Of these holdings. settle: gives the finished temporary file its name, and says what the file is then.

    clocks: by slice, the steps that replicas have taken.
    """

    def __init__(
        self,
        temporary: Path,
        holdings: Iterable[Holding],
        rule: Rule,
        settle: Callable[[Path], T],
        *,
        clocks: Mapping[int, Mapping[int, int]],
    ) -> None:
        self._left = {holding.slice.number: holding for holding in holdings}
        self._held = {
            number: Held(
                holding.slice,
                sorted(holding.state),
                holding.version,
                dict(holding.applied),
                dict(clocks.get(number, {})),
            )
            for number, holding in self._left.items()
        }
        layouts: dict[str, Layout] = {}
        for number, holding in self._left.items():
            layouts |= {name: (t.dtype, list(t.shape)) for name, t in self._tensors(number, holding).items()}
        header = msgspec.json.encode(ShardHeader(msgspec.to_builtins(rule), list(self._held.values()))).decode()
        self._copies: queue.Queue[dict[str, Tensor] | None] = queue.Queue(WAITING_MOST)
        self._result: list[T] = []
        self._error: OSError | CheckpointError | None = None
        file = (temporary, layouts, {HEADER: header}, settle)
        self._thread = threading.Thread(target=self._write, args=file, name="snapshot", daemon=True)
        self._thread.start()
        if not self._left:
            self._copies.put(None)

    @property
    def applied(self) -> dict[int, dict[str, int]]:
        """By slice: the last push of each client that is in it."""
        return {number: one.applied for number, one in self._held.items()}

    def before(self, number: int) -> None:
        """A slice is about to change."""
        holding = self._left.pop(number, None)
        if holding is None:
            return
        if self._error is None:
            self._copies.put({name: tensor.clone() for name, tensor in self._tensors(number, holding).items()})
        if not self._left:
            self._copies.put(None)

    def go_on(self) -> bool:
        """Copy a slice if there is one to copy, and room for it; whether there was."""
        if not self._left or self._copies.full():
            return False
        self.before(next(iter(self._left)))
        return True

    @property
    def ended(self) -> bool:
        """Whether it is on the disk or has failed, which `result` tells."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Copy all that is left, and wait for the disk."""
        for number in list(self._left):
            self.before(number)
        self._thread.join()

    def result(self) -> T:
        """What the file is, once all is written; the error where it could not be."""
        self.finish()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _tensors(self, number: int, holding: Holding) -> dict[str, Tensor]:
        """By name in the file; what the rule has added to its memory since is left out."""
        one = self._held[number]
        return {one.value: holding.value, **{one.memory(name): holding.state[name] for name in one.state}}

    def _write(
        self, temporary: Path, layouts: dict[str, Layout], metadata: dict[str, str], settle: Callable[[Path], T]
    ) -> None:
        copies: dict[str, Tensor] | None = {}
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            with TensorWriter(temporary, layouts, metadata=metadata) as writer:
                while (copies := self._copies.get()) is not None:
                    for name, tensor in copies.items():
                        writer.write(name, tensor)
                writer.finish()
            self._result = [settle(temporary)]
        except (OSError, CheckpointError) as error:
            self._error = error  # is raised in the shard's thread
            with contextlib.suppress(OSError):  # what there is of it takes up space that others may need
                temporary.unlink()
            while copies is not None:  # the shard must not wait for room
                copies = self._copies.get()
