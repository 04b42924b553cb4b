"""`SampleLoader`: reads the batches of a run, those of a dataset in processes of its own, before they are due."""

from collections.abc import Iterable

from ...models.sample_stream import SampleStream
from ...models.task import Data
from .dataset_samples import DatasetSamples, Samples
from .reader_demand import ReaderDemand
from .reader_forks import ReaderForks
from .reader_process import ReaderProcess, fork_readers

AHEAD = 3  # batches that each process may read before they are due


class SampleLoader:
    """Reads the batches of one process that trains, as `stream` has them, until it is closed or left.

    It is made before the model, so that what reads is small. Batches are the same whichever process reads them, so
    these may come and go while the run goes on.
    """

    def __init__(self, samples: Samples, stream: SampleStream) -> None:
        self._samples, self._stream = samples, stream
        read_by = (samples.processes, samples.max_processes) if isinstance(samples, DatasetSamples) else (0, 0)
        self._demand = ReaderDemand(*read_by)
        self._forks = fork_readers(samples) if isinstance(samples, DatasetSamples) and samples.processes else None
        self._readers: list[ReaderProcess] = []
        self._reading: dict[int, ReaderProcess] = {}  # by number of a batch

    def read(self, number: int, upcoming: Iterable[int] = ()) -> Data:
        """Return global batch `number`. upcoming: numbers of batches that are probably next."""
        if self._forks is None:
            # Samples in memory are the same in all epochs.
            epochs = None if isinstance(self._samples, Data) else self._stream.epochs(number)
            return self._samples.rows(self._stream.indices(number), epochs)
        wanted = [number, *upcoming]
        for unwanted in self._reading.keys() - set(wanted):  # of steps that a method has skipped
            self._reading.pop(unwanted).forget(unwanted)
        for one in wanted[: self.ahead + 1]:
            self._request(self._forks, one)
        reader = self._reading.pop(number)
        batch = reader.take(number)
        self._demand.note(reader.waited_s)
        assert isinstance(batch, Data)
        return batch

    @property
    def ahead(self) -> int:
        """How many upcoming batches are of use."""
        return AHEAD * self._demand.count

    @property
    def pids(self) -> list[int]:
        """The processes that read."""
        return [reader.pid for reader in self._readers]

    def close(self) -> None:
        """End the processes."""
        self._reading.clear()
        while self._readers:
            self._readers.pop().close()
        if self._forks is not None:
            self._forks.close()

    def _request(self, forks: ReaderForks, number: int) -> None:
        """Have a batch read, if that is not under way, by the process with the least to do."""
        if number in self._reading:
            return
        count = self._demand.count
        while len(self._readers) < count:
            self._readers.append(ReaderProcess(forks))
        while len(self._readers) > count and not self._readers[-1].waiting:
            self._readers.pop().close()
        reader = min(self._readers[:count], key=lambda one: one.waiting)
        reader.request(number, self._stream.indices(number).tolist(), self._stream.epochs(number).tolist())
        self._reading[number] = reader

    def __enter__(self) -> "SampleLoader":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SampleLoader({self._samples}, {self._demand.count} processes)"


def make_stream(samples: Samples, *, batch: int, seed: int, first: int = 0) -> SampleStream:
    """Return the batches of all epochs, of one bucket each where the samples have buckets. first: see SampleStream."""
    buckets = samples.find_buckets() if isinstance(samples, DatasetSamples) else None
    return SampleStream(len(samples), batch=batch, seed=seed, buckets=buckets, first=first)
