"""`SampleLoader`: reads the batches of a run, those of a dataset in processes of its own, before they are due."""

from collections.abc import Iterable

from ...models.sample_stream import SampleStream
from ...models.task import Data
from .dataset_samples import DatasetSamples, Samples
from .reader_demand import ReaderDemand
from .reader_process import ReaderProcess

AHEAD = 3  # batches that each process may read before they are due


class SampleLoader:
    """Reads the batches of one process that trains, while entered, as `stream` has them.

    Batches are the same whichever process reads them, so more of these may come while the run goes on.
    """

    def __init__(self, samples: Samples, stream: SampleStream) -> None:
        self._samples, self._stream = samples, stream
        self._count, self._most = (
            (samples.processes, samples.max_processes) if isinstance(samples, DatasetSamples) else (0, 0)
        )
        self._demand = ReaderDemand()
        self._readers: list[ReaderProcess] = []
        self._reading: dict[int, ReaderProcess] = {}  # by number of a batch

    def read(self, number: int, upcoming: Iterable[int] = ()) -> Data:
        """Return global batch `number`. upcoming: numbers of batches that are probably next."""
        if not self._count:
            return self._samples.rows(self._stream.indices(number), self._stream.epochs(number))
        wanted = [number, *upcoming]
        for unwanted in self._reading.keys() - set(wanted):  # of steps that a method has skipped
            self._reading.pop(unwanted).forget(unwanted)
        for one in wanted[: self.ahead + 1]:
            self._request(one)
        reader = self._reading.pop(number)
        batch = reader.take(number)
        if self._count < self._most and self._demand.count(reader.times):
            self._count = min(2 * self._count, self._most)
        assert isinstance(batch, Data)
        return batch

    @property
    def ahead(self) -> int:
        """How many upcoming batches are of use."""
        return AHEAD * self._count

    @property
    def pids(self) -> list[int]:
        """The processes that read."""
        return [reader.pid for reader in self._readers]

    def close(self) -> None:
        """End the processes."""
        self._reading.clear()
        while self._readers:
            self._readers.pop().close()

    def _request(self, number: int) -> None:
        """Have a batch read, if that is not under way, by the process with the least to do."""
        if number in self._reading:
            return
        while len(self._readers) < self._count:
            assert isinstance(self._samples, DatasetSamples)
            self._readers.append(ReaderProcess(self._samples))
        reader = min(self._readers, key=lambda one: one.waiting)
        reader.request(number, self._stream.indices(number).tolist(), self._stream.epochs(number).tolist())
        self._reading[number] = reader

    def __enter__(self) -> "SampleLoader":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SampleLoader({self._samples}, {self._count} processes)"


def make_stream(samples: Samples, *, batch: int, seed: int, first: int = 0) -> SampleStream:
    """Return the batches of all epochs, of one bucket each where the samples have buckets. first: see SampleStream."""
    buckets = samples.find_buckets() if isinstance(samples, DatasetSamples) else None
    return SampleStream(len(samples), batch=batch, seed=seed, buckets=buckets, first=first)
