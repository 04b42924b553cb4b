"""`PartLoader`: reads batches of parts, in processes of their own before they are due."""

from collections.abc import Mapping
from types import MappingProxyType

from ...models.task import Data
from .part_samples import PartEnd, PartReaders, PartSamples, locate_batch
from .reader_process import ReaderProcess
from .sample_loader import AHEAD

NOTHING: Mapping[int, bool] = MappingProxyType({})


class PartLoader:
    """Reads the batches of one process that trains, while entered. A part is read by one process."""

    def __init__(self, samples: PartSamples, batch: int) -> None:
        self.samples, self.batch = samples, batch
        self._own = PartReaders(samples, batch)
        self._readers: list[ReaderProcess] = []
        self._reading: dict[int, ReaderProcess] = {}  # by number of a batch

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
        if not self.samples.processes:
            return self._own.read(number, wanted)
        following = {number: wanted, **upcoming}
        for unwanted in self._reading.keys() - following.keys():
            self._reading.pop(unwanted).forget(unwanted)
        for one, is_wanted in following.items():
            if one not in self._reading:
                self._request(one, is_wanted)
        found = self._reading.pop(number).take(number)
        if found is None and wanted:
            self._request(number, True)
            found = self._reading.pop(number).take(number)
        return found

    def close(self) -> None:
        """End the processes."""
        self._reading.clear()
        while self._readers:
            self._readers.pop().close()

    def _request(self, number: int, wanted: bool) -> None:
        if not self._readers:
            self._readers = [ReaderProcess(self._own) for _ in range(self.samples.processes)]
        part = locate_batch(number)[0] % self.samples.parts
        reader = self._readers[part % len(self._readers)]
        reader.request(number, int(wanted))
        self._reading[number] = reader

    def __repr__(self) -> str:
        return f"PartLoader({self.samples}, {len(self._readers)} processes)"
