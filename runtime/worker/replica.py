"""`Replica`: all workers of one copy of a model in this process, one thread a machine, over an in-memory channel.

The same workers and programs run in processes of their own under the launcher; here they serve Python callers and
tests.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from queue import SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

from ...models.task import Data
from ...partition.ir.box import Box, slices
from ...errors import BadInput
from ..channel.faults import Fault
from .batch_feed import Feed
from ..channel.mailbox import Mailbox
from ..channel.memory_channel import MemoryNetwork
from .leaf_modules import OwnModules
from .program import Program
from .schedule import DATAFLOW
from .worker import Worker

T = TypeVar("T")
Pieces = list[tuple[Box, Tensor]]


class Replica:
    """Workers of one replica in threads. A context manager; an error in one worker ends the others' waiting.

    model: the user's, where it has blocks by hand; each worker makes a copy of it, without values. order: name of the
    schedule (schedule.py).
    """

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        seed: int = 0,
        faults: Iterable[Fault] = (),
        model: nn.Module | None = None,
        order: str = DATAFLOW,
    ) -> None:
        self._network = MemoryNetwork(faults)
        names = [f"worker-0.{p.machine}" for p in programs]
        self._channels = [self._network.channel(name) for name in names]
        turn = threading.Lock()
        own = [None if model is None else OwnModules.where_needed([p], lambda: model) for p in programs]
        self.workers = [
            Worker(program, Mailbox(channel), names, seed=seed, order=order, turn=turn, own=modules)
            for program, channel, modules in zip(programs, self._channels, own, strict=True)
        ]
        self._feed: Feed | None = None  # of the prediction that is under way
        self._threads = ThreadPoolExecutor(len(programs), thread_name_prefix="replica")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._feed is not None:
            self._feed.end()
        self._network.abort("the replica is closed")
        self._threads.shutdown()
        for channel in self._channels:
            channel.close()

    def load(self, value: Callable[[str], Tensor]) -> None:
        """Fill every worker's state from whole tensors by name."""
        for worker in self.workers:
            worker.states.load(value)

    def step(self, batch: Data, step: int) -> float:
        """Zero the gradients, run one batch forward and backward, and return its loss."""
        self._demand(training=True)
        for worker in self.workers:
            worker.gradients.zero_()
        losses = self._each(lambda worker: worker.step(batch, step))
        return next(loss for loss in losses if loss is not None)

    def clip(self, most: float, step: int) -> list[float]:
        """Scale the gradients so that their norm is at most `most`; what it was, as every worker found it."""
        return self._each(lambda worker: worker.clip(most, step))

    def predict(self, samples: Data | Iterable[Data], step: int = 0) -> Iterator[Tensor]:
        """The whole output of every batch, in order; several are on their way through the machines at a time.

        samples: batches, or all samples at once, which are then divided into batches. A batch has at most as many
        samples as the model was planned for; a smaller one is filled up, and its output cut.
        """
        size = self.workers[0].program.batch
        lengths = deque[int]()

        def batches() -> Iterator[Data]:
            for batch in _divided(samples, size):
                lengths.append(len(batch))
                yield batch if len(batch) == size else _filled(batch, size)

        self._demand(training=False)
        feed = self._feed = Feed(
            batches(), readers=len(self.workers), ahead=1 + max(worker.cap for worker in self.workers)
        )
        found: list[SimpleQueue[Pieces | None]] = [SimpleQueue() for _ in self.workers]
        errors: list[BaseException] = []

        def predict(worker: Worker, out: SimpleQueue[Pieces | None]) -> None:
            """The outputs of one worker; None at the end, and where it fails."""
            try:
                for pieces in worker.stream(feed.batches(), step):
                    out.put(pieces)
            except BaseException as error:  # raised again below, in the caller's thread
                errors.append(error)
                self._network.abort(f"{error}")
            finally:
                feed.end()
                out.put(None)

        futures = [self._threads.submit(predict, *pair) for pair in zip(self.workers, found, strict=True)]
        try:
            while None not in (pieces := [out.get() for out in found]):
                feed.consumed()
                output = self._output([piece for some in pieces for piece in some or ()])
                whole = output.shape[:1] != (size,)
                rows = lengths.popleft()
                yield output if whole else output[:rows]
        finally:
            feed.end()
            wait(futures)
            self._feed = None
            if errors:
                raise errors[0]

    def _demand(self, *, training: bool) -> None:
        """BadInput where the replica was not made for what is asked of it, or is still at work."""
        if self.workers[0].program.training != training:
            made, asked = ("predict", "step") if training else ("step", "predict")
            raise BadInput(
                "E345",
                f"this replica was made to {made}, not to {asked}",
                fix=f"cutset.replica(..., training={training})",
            )
        if self._feed is not None:
            raise BadInput(
                "E346",
                "this replica still predicts",
                fix="read all outputs of the first prediction, or close() it, first",
            )

    def _output(self, pieces: Pieces) -> Tensor:
        """The whole output from its boxes."""
        name = next(p.program.pieces[p.program.results[0]].tensor for p in self.workers if p.program.results)
        info = next(w.program.tensors[name] for w in self.workers if name in w.program.tensors)
        out = torch.empty(info.extents, dtype=getattr(torch, info.dtype))
        for box, tensor in pieces:
            out[slices(box)] = tensor
        return out.reshape(info.shape)

    def gradients(self) -> dict[str, Tensor]:
        """Whole gradients by parameter name, put together from the workers' pieces."""
        return self._whole(lambda tensor: tensor.grad)

    def parameters(self) -> dict[str, Tensor]:
        """Whole trained parameters by name."""
        return self._whole(lambda tensor: tensor.detach() if tensor.requires_grad else None)

    def _whole(self, part: Callable[[Tensor], Tensor | None]) -> dict[str, Tensor]:
        whole: dict[str, Tensor] = {}
        for worker in self.workers:
            for (name, box), piece in worker.states.pieces.items():
                tensor, info = part(piece), worker.program.tensors[name]
                if tensor is not None:
                    into = whole.setdefault(name, torch.zeros(info.extents, dtype=tensor.dtype))
                    into[slices(box)] = tensor
        shapes = {name: w.program.tensors[name].shape for w in self.workers for name in w.program.tensors}
        return {name: tensor.reshape(shapes[name]) for name, tensor in whole.items()}

    def _each(self, work: Callable[[Worker], T]) -> list[T]:
        """Run `work` for every worker at once; the first error ends all."""
        futures = [self._threads.submit(work, worker) for worker in self.workers]
        done, pending = wait(futures, return_when=FIRST_EXCEPTION)
        failed = [f for f in futures if f in done and f.exception() is not None]
        if failed:
            self._network.abort(f"{failed[0].exception()}")
            wait(pending)
            failed[0].result()
        return [future.result() for future in futures]


def _divided(samples: Data | Iterable[Data], size: int) -> Iterator[Data]:
    if not isinstance(samples, Data):
        yield from samples
        return
    for start in range(0, len(samples), size):
        yield samples.rows(torch.arange(start, min(start + size, len(samples))))


def _filled(batch: Data, size: int) -> Data:
    """A batch with its last sample repeated."""
    if not 0 < len(batch) < size:
        raise BadInput(
            "E343",
            f"{len(batch)} samples to predict; the model was planned for {size} at a time",
            fix="smaller batches",
        )
    return batch.rows(torch.arange(size).clamp(max=len(batch) - 1))
