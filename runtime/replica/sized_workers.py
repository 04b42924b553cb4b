"""`SizedWorkers`: a machine's programs for batches of several sizes, of one cut: the batch chooses which one runs.

Batches of a text have a few lengths (see models/buckets.py), and the last batch of an evaluation may be short. Each
size has a program of its own, with its own exchanges; parameters, gradients and buffers are the same for all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from torch import Tensor

from ...errors import BadInput
from ...models.task import Data
from ...partition.ir.box import Box
from ..channel.mailbox import Mailbox
from ..worker.flat_parameters import FlatParameters
from ..worker.program import Program
from ..worker.trace import Trace
from ..worker.worker import Worker


class SizedWorkers:
    """The workers of one machine by size of a batch; `first` is that of the size for which the cut was planned.

    programs: all of one cut, the first the planned one, whose steps `trace` records. states: what others that run on
    this machine have, by default its own. tag: sets their messages apart
    from those of other programs on the channel. more: what `Worker` takes besides.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        mailbox: Mailbox,
        peers: Sequence[str],
        *,
        states: FlatParameters | None = None,
        tag: str = "",
        trace: Trace | None = None,
        **more: Any,
    ) -> None:
        states = FlatParameters(programs[0]) if states is None else states
        for program in programs:
            states.extend(program)
        self._workers = [
            Worker(
                program,
                mailbox,
                peers,
                states=states,
                tag=f"{tag}{number}." if number else tag,
                trace=None if number else trace,
                **more,
            )
            for number, program in enumerate(programs)
        ]
        self.first = self._last = self._workers[0]

    def step(self, batch: Data, step: int) -> float | None:
        """Run a step as `Worker.step` does, by the program for such a batch."""
        worker = self._choose(batch)
        if worker is not self._last:
            self._last.await_last_step()
            self._last = worker
        return worker.step(batch, step)

    def stream(self, batches: Iterable[Data], step: int) -> Iterator[tuple[Worker, list[tuple[Box, Tensor]]]]:
        """Yield the outputs for batches as `Worker.stream` does, each with the worker that has computed it."""
        for worker, alike in groupby(batches, key=self._choose):
            for pieces in worker.stream(alike, step):
                yield worker, pieces

    def has_program(self, batch: Data) -> bool:
        """Whether there is a program for such a batch."""
        return any(_fits(worker.program, batch) for worker in self._workers)

    def _choose(self, batch: Data) -> Worker:
        if len(self._workers) == 1:
            return self.first  # which says what is wrong
        found = next((worker for worker in self._workers if _fits(worker.program, batch)), None)
        if found is None:
            sizes = ", or ".join(_describe(one.program.batch, one.program.samples) for one in self._workers)
            facts = f"a batch of {_describe(len(batch), _list_samples(batch))}; the model was planned for {sizes}"
            raise BadInput("E343", facts, fix="pad samples to one of these sizes, or plan again with such a batch")
        return found

    def __repr__(self) -> str:
        return f"SizedWorkers({self.first!r}, {len(self._workers)} sizes)"


def _fits(program: Program, batch: Data) -> bool:
    """Whether samples have the sizes of a program, and are as many as it takes, or a multiple where it trains."""
    has_count = len(batch) % program.batch == 0 if program.training else len(batch) == program.batch
    actual = _list_samples(batch)
    return has_count and all(actual.get(name) == shape for name, shape in program.samples.items())


def _list_samples(batch: Data) -> dict[str, tuple[int, ...]]:
    """Return the shape of a sample of each tensor of a batch, by the name that programs have for it."""
    parts = (("input", batch.inputs), ("target", batch.targets))
    return {f"{kind}.{i}": tuple(tensor.shape[1:]) for kind, tensors in parts for i, tensor in enumerate(tensors)}


def _describe(count: int, samples: Mapping[str, tuple[int, ...]]) -> str:
    return f"{count} samples of " + ", ".join(f"{name} {list(shape)}" for name, shape in samples.items())
