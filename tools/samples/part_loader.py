"""`PartLoader`: reads batches of parts, in processes of their own before they are due."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from ...models.task import Data
from .part_samples import PartEnd, PartReaders, PartSamples, locate_batch
from .reader_forks import ReaderForks
from .reader_process import ReaderProcess, fork_readers
from .sample_loader import AHEAD

NOTHING: Mapping[int, bool] = MappingProxyType({})


class PartLoader:
    """Reads the batches of one process that trains, until it is closed. A part of an epoch is read by one process.

    It is made before the model, so that what reads is small.
    """

    def __init__(self, samples: PartSamples, batch: int) -> None:
        self.samples, self.batch = samples, batch
        self._own = PartReaders(samples, batch)
        self._forks = fork_readers(self._own) if samples.processes else None
        self._readers: list[ReaderProcess] = []
        self._reading: dict[int, ReaderProcess] = {}  # by number of a batch
        self._reader_of: dict[int, ReaderProcess] = {}  # by track
        self._open = set[int]()  # the tracks whose end was not read

    @property
    def ahead(self) -> int:
        """How many upcoming batches are of use."""
        return AHEAD * self.samples.processes

    def read(
        self, number: int, upcoming: Mapping[int, bool] = NOTHING, *, wanted: bool = True
    ) -> Data | PartEnd | None:
        """Return the batch of a number, None unless it is wanted, or the end of its part where there is none.

        upcoming: the numbers of batches that are probably next, and whether they are wanted.
        """
        if self._forks is None:
            return self._own.read(number, wanted)
        following = {number: wanted, **upcoming}
        for unwanted in self._reading.keys() - following.keys():
            self._reading.pop(unwanted).forget(unwanted)
        for one, is_wanted in following.items():
            if one not in self._reading:
                self._request(self._forks, one, is_wanted)
        found = self._reading.pop(number).take(number)
        if found is None and wanted:
            self._request(self._forks, number, True)
            found = self._reading.pop(number).take(number)
        if isinstance(found, PartEnd):
            self._open.discard(locate_batch(number)[0])
        return found

    def close(self) -> None:
        """End the processes."""
        self._reading.clear()
        while self._readers:
            self._readers.pop().close()
        if self._forks is not None:
            self._forks.close()

    def _request(self, forks: ReaderForks, number: int, wanted: bool) -> None:
        if not self._readers:
            self._readers = [ReaderProcess(forks) for _ in range(self.samples.processes)]
        track = locate_batch(number)[0]
        if track not in self._reader_of:
            self._reader_of[track] = self._choose_reader()
            self._open.add(track)
        reader = self._reader_of[track]
        reader.request(number, int(wanted))
        self._reading[number] = reader

    def _choose_reader(self) -> ReaderProcess:
        """Return the process with the fewest tracks whose end was not read."""
        counts = Counter(self._reader_of[track].pid for track in self._open)
        return min(self._readers, key=lambda reader: counts[reader.pid])

    def __repr__(self) -> str:
        return f"PartLoader({self.samples}, {len(self._readers)} processes)"
