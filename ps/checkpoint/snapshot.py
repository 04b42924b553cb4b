"""`Snapshot`: a shard's state at one moment, written to a file by a thread while the shard goes on serving.

A slice that is about to change is copied first; the others are copied as the thread has time for them. At most a few
copies wait for the disk; if the disk is slower than the pushes, these wait for it.
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
from ..optimizers.optimizer import Optimizer
from ..slices.slice_state import SliceState
from .streamed_safetensors import Layout, TensorWriter
from .write_checkpoint import HEADER, ShardHeader, SliceHeader, make_folder_durably

MAX_WAITING_COPIES = 8  # slices that are copied and not written yet

Clocks = Mapping[int, Mapping[int, int]]  # by slice and replica: the steps that the replica has taken

T = TypeVar("T")


class Snapshot(Generic[T]):
    """The snapshot of these slices.

    publish: gives the finished temporary file its name, and returns what `result` returns. version: of lock-step
    methods, the version of which every slice is saved, whichever comes to it first; by default each as it is.
    """

    def __init__(
        self,
        temporary: Path,
        slice_states: Iterable[SliceState],
        optimizer: Optimizer,
        publish: Callable[[Path], T],
        *,
        clocks: Clocks,
        version: int | None = None,
    ) -> None:
        self._version = version
        self._uncopied = {state.slice.number: state for state in slice_states}
        self._headers = {
            number: SliceHeader(
                state.slice,
                sorted(state.state),
                state.version if version is None else version,
                dict(state.applied),
                dict(clocks.get(number, {})),
                dict(state.steps),
            )
            for number, state in self._uncopied.items()
        }
        layouts: dict[str, Layout] = {}
        for number, state in self._uncopied.items():
            layouts |= {name: (t.dtype, list(t.shape)) for name, t in self._tensors(number, state).items()}
        header = msgspec.json.encode(ShardHeader(msgspec.to_builtins(optimizer), list(self._headers.values()))).decode()
        self._copies: queue.Queue[dict[str, Tensor] | None] = queue.Queue(MAX_WAITING_COPIES)
        self._result: list[T] = []
        self._error: OSError | CheckpointError | None = None
        arguments = (temporary, layouts, {HEADER: header}, publish)
        self._thread = threading.Thread(target=self._write, args=arguments, name="snapshot", daemon=True)
        self._thread.start()
        if not self._uncopied:
            self._copies.put(None)

    @property
    def applied(self) -> dict[int, dict[str, int]]:
        """By slice and client, the number of the last push that the snapshot contains."""
        return {number: header.applied for number, header in self._headers.items()}

    def applied_push(self, number: int, client: str) -> int:
        """Return the number of the client's last push to a slice that the snapshot contains; 0 for none."""
        header = self._headers.get(number)
        return 0 if header is None else header.applied.get(client, 0)

    def before_change(self, number: int) -> None:
        """Copy a slice that is about to change, unless it was copied before, or has yet to come to the version."""
        if number in self._uncopied and self._is_due(self._uncopied[number]):
            self._copy(number)

    def copy_next(self) -> bool:
        """Copy a slice if one is left and the queue has room. Return whether it did."""
        due = next((number for number, state in self._uncopied.items() if self._is_due(state)), None)
        if due is None or self._copies.full():
            return False
        self._copy(due)
        return True

    @property
    def has_ended(self) -> bool:
        """Whether the file is on disk or has failed; see `result`."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Copy all slices that are left, and wait for the disk."""
        for number in list(self._uncopied):
            self._copy(number)
        self._thread.join()

    def result(self) -> T:
        """Finish, and return what `publish` returned. OSError or CheckpointError if the file could not be written."""
        self.finish()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _copy(self, number: int) -> None:
        state = self._uncopied.pop(number)
        if self._error is None:
            self._copies.put({name: tensor.clone() for name, tensor in self._tensors(number, state).items()})
        if not self._uncopied:
            self._copies.put(None)

    def _is_due(self, state: SliceState) -> bool:
        return self._version in (None, state.version)

    def _tensors(self, number: int, state: SliceState) -> dict[str, Tensor]:
        """Return the slice's tensors by name in the file, without state that the optimizer has added since."""
        header = self._headers[number]
        return {header.value: state.value, **{header.state_tensor(name): state.state[name] for name in header.state}}

    def _write(
        self, temporary: Path, layouts: dict[str, Layout], metadata: dict[str, str], publish: Callable[[Path], T]
    ) -> None:
        copies: dict[str, Tensor] | None = {}
        try:
            make_folder_durably(temporary.parent)
            with TensorWriter(temporary, layouts, metadata=metadata) as writer:
                while (copies := self._copies.get()) is not None:
                    for name, tensor in copies.items():
                        writer.write(name, tensor)
                writer.finish()
            self._result = [publish(temporary)]
        except (OSError, CheckpointError) as error:
            self._error = error  # raised by `result` in the shard's thread
            with contextlib.suppress(OSError):  # a partial file takes up space that others may need
                temporary.unlink()
            while copies is not None:  # the shard must not wait for room in the queue
                copies = self._copies.get()
