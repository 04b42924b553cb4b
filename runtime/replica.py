"""`Replica`: all workers of one copy of a model in this process, one thread a machine, over an in-memory channel.

The same workers and programs run in processes of their own under the launcher; here they serve Python callers and
tests.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

from ..models.task import Data
from ..partition.box import slices
from .faults import Fault
from .mailbox import Mailbox
from .memory_channel import MemoryNetwork
from .own_modules import OwnModules
from .program import Program
from .worker import Worker

T = TypeVar("T")


class Replica:
    """Workers of one replica in threads. A context manager; an error in one worker ends the others' waiting.

    model: the user's, where it has blocks by hand; each worker makes a copy of it, without values.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        seed: int = 0,
        faults: Iterable[Fault] = (),
        model: nn.Module | None = None,
    ) -> None:
        self._network = MemoryNetwork(faults)
        names = [f"worker-0.{p.machine}" for p in programs]
        self._channels = [self._network.channel(name) for name in names]
        turn = threading.Lock()
        own = [None if model is None else OwnModules.where_needed([p], lambda: model) for p in programs]
        self.workers = [
            Worker(program, Mailbox(channel), names, seed=seed, turn=turn, own=modules)
            for program, channel, modules in zip(programs, self._channels, own, strict=True)
        ]
        self._threads = ThreadPoolExecutor(len(programs), thread_name_prefix="replica")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
        for worker in self.workers:
            worker.gradients.zero_()
        losses = self._each(lambda worker: worker.step(batch, step))
        return next(loss for loss in losses if loss is not None)

    def predict(self, batch: Data, step: int) -> Tensor:
        """The whole output for one batch."""
        pieces = [piece for found in self._each(lambda worker: worker.predict(batch, step)) for piece in found]
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
