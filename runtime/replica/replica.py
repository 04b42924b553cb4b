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

from ...errors import BadInput
from ...models.task import Data
from ...partition.ir.box import Box, slices
from ...partition.operators.step_module import StepModule
from ..channel.faults import Fault
from ..channel.mailbox import Mailbox
from ..channel.memory_channel import MemoryNetwork
from ..worker.flat_parameters import PieceKey
from ..worker.leaf_modules import LeafModules
from ..worker.program import Program
from ..worker.schedule import DATAFLOW
from ..worker.worker import Worker
from .batch_feed import BatchFeed

T = TypeVar("T")
Pieces = list[tuple[Box, Tensor]]


class Replica:
    """The workers of one replica in threads. A context manager; an error in one worker ends the waiting of the others.

    A replica of one machine gives the losses and gradients of plain torch bit for bit, and each run the same ones, if
    products do not depend on where tensors lie in memory. On some processors (AMD Zen) MKL needs MKL_CBWR=AUTO for
    that. Roles that the launcher starts have it; for this process set it in the environment before torch is imported,
    as MKL reads it once.

    model, loss, input_names: the user's, where there are leaf modules; each worker makes a copy, without values. Inputs
    with a name are the last, and go by keyword. order: name of the schedule (schedule.py).
    """

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        seed: int = 0,
        faults: Iterable[Fault] = (),
        model: nn.Module | None = None,
        loss: Callable[..., Tensor] | None = None,
        input_names: Sequence[str] = (),
        order: str = DATAFLOW,
    ) -> None:
        self._network = MemoryNetwork(faults)
        names = [f"worker-0.{p.machine}" for p in programs]
        self._channels = [self._network.channel(name) for name in names]
        rng_lock = threading.Lock()
        leaf_modules = [
            None if model is None else LeafModules.where_needed([p], lambda: StepModule(model, loss, input_names))
            for p in programs
        ]
        self.workers = [
            Worker(program, Mailbox(channel), names, seed=seed, order=order, rng_lock=rng_lock, leaf_modules=modules)
            for program, channel, modules in zip(programs, self._channels, leaf_modules, strict=True)
        ]
        self._feed: BatchFeed | None = None  # of the prediction that is under way
        self._threads = ThreadPoolExecutor(len(programs), thread_name_prefix="replica", initializer=_keep_thread_count)

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
        self._check_mode(training=True)
        for worker in self.workers:
            worker.gradients.zero_()
        losses = self._each(lambda worker: worker.step(batch, step))
        return next(loss for loss in losses if loss is not None)

    def clip(self, max_norm: float, step: int) -> list[float]:
        """Scale the gradients so that their norm is at most `max_norm`. Returns the norm before, one per worker."""
        return self._each(lambda worker: worker.clip(max_norm, step))

    def predict(self, samples: Data | Iterable[Data], step: int = 0) -> Iterator[Tensor]:
        """Yield the whole output of every batch, in order; several batches are on their way at a time.

        samples: batches, or all samples at once, which are then divided into batches. A batch has at most as many
        samples as the model was planned for; a smaller one is filled up, and its output cut. BadInput where that would
        change what it gives, as of a model that compares samples.
        """
        size = self.workers[0].program.batch
        lengths = deque[int]()

        def batches() -> Iterator[Data]:
            for batch in _split_samples(samples, size):
                self._require_whole(len(batch))
                lengths.append(len(batch))
                yield batch if len(batch) == size else _fill_up(batch, size)

        self._check_mode(training=False)
        if isinstance(samples, Data):
            self._require_whole(len(samples) % size)
        feed = self._feed = BatchFeed(
            batches(), readers=len(self.workers), ahead=1 + max(worker.cap for worker in self.workers)
        )
        outputs: list[SimpleQueue[Pieces | None]] = [SimpleQueue() for _ in self.workers]
        errors: list[BaseException] = []

        def predict(worker: Worker, out: SimpleQueue[Pieces | None]) -> None:
            """Put the outputs of one worker into `out`; None at the end, and where it fails."""
            try:
                for pieces in worker.stream(feed.batches(), step):
                    out.put(pieces)
            except BaseException as error:  # raised again below, in the caller's thread
                errors.append(error)
                self._network.abort(f"{error}")
            finally:
                feed.end()
                out.put(None)

        futures = [self._threads.submit(predict, *pair) for pair in zip(self.workers, outputs, strict=True)]
        try:
            while None not in (pieces := [out.get() for out in outputs]):
                feed.count_consumed()
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

    def _require_whole(self, count: int) -> None:
        """BadInput where a batch of so many samples would have to be filled up, and that would change its output."""
        program = self.workers[0].program
        if program.compares_samples and 0 < count < program.batch:
            facts = f"a batch of {count} samples; the model was planned for {program.batch}, and compares samples"
            fix = f"batches of {program.batch} samples, or a plan for batches of {count}"
            raise BadInput("E343", f"{facts} or has no row for each", fix=fix)

    def _check_mode(self, *, training: bool) -> None:
        """BadInput where the replica was not made for what is asked of it, or is still at work."""
        if self.workers[0].program.training != training:
            mode, call = ("predict", "step") if training else ("step", "predict")
            raise BadInput(
                "E345",
                f"this replica was made to {mode}, not to {call}",
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
        """The whole gradients by parameter name, assembled from the workers' pieces."""
        return self._assemble(lambda worker: worker.states.trained(worker.gradients))

    def parameters(self) -> dict[str, Tensor]:
        """The whole trained parameters by name."""
        return self._assemble(lambda worker: worker.states.trained(worker.values))

    def _assemble(self, parts: Callable[[Worker], dict[PieceKey, Tensor]]) -> dict[str, Tensor]:
        whole: dict[str, Tensor] = {}
        for worker in self.workers:
            for (name, box), tensor in parts(worker).items():
                extents = worker.program.tensors[name].extents
                if name not in whole:
                    whole[name] = torch.zeros(extents, dtype=tensor.dtype)
                whole[name][slices(box)] = tensor
        shapes = {name: w.program.tensors[name].shape for w in self.workers for name in w.program.tensors}
        return {name: tensor.reshape(shapes[name]) for name, tensor in whole.items()}

    def _each(self, work: Callable[[Worker], T]) -> list[T]:
        """Run `work` for every worker at once. Returns the results in order of workers; the first error ends all."""
        futures = [self._threads.submit(work, worker) for worker in self.workers]
        done, pending = wait(futures, return_when=FIRST_EXCEPTION)
        failed = [f for f in futures if f in done and f.exception() is not None]
        if failed:
            self._network.abort(f"{failed[0].exception()}")
            wait(pending)
            failed[0].result()
        return [future.result() for future in futures]


def _keep_thread_count() -> None:
    """Compute in this new thread with as many OpenMP threads as in the one that called `torch.set_num_threads`.

    OpenMP, and so MKL, begins every thread with its own default instead, and with another number of threads the last
    bits of a product may differ.
    """
    torch.set_num_threads(torch.get_num_threads())


def _split_samples(samples: Data | Iterable[Data], size: int) -> Iterator[Data]:
    if not isinstance(samples, Data):
        yield from samples
        return
    for start in range(0, len(samples), size):
        yield samples.rows(torch.arange(start, min(start + size, len(samples))))


def _fill_up(batch: Data, size: int) -> Data:
    """A batch with its last sample repeated."""
    if not 0 < len(batch) < size:
        raise BadInput(
            "E343",
            f"{len(batch)} samples to predict; the model was planned for {size} at a time",
            fix="smaller batches",
        )
    return batch.rows(torch.arange(size).clamp(max=len(batch) - 1))
