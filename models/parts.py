"""`Parts`: a stream of samples in parts, such as files, each of which is read by itself."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info


class Parts(IterableDataset[Any]):
    """The samples of some files, or of whatever else is read from its beginning to its end.

    Args:
        files: names of the parts, in any form: paths, addresses, ranges.
        read: `read(file)` yields the samples of one part; it is called again in every epoch.
        samples: how many all parts have together, where that is known; schedules and progress need it.

    In a worker of a `DataLoader` it yields the samples of every `num_workers`-th part, as torch expects it.
    """

    def __init__(
        self, files: Sequence[Any], read: Callable[[Any], Iterable[Any]], *, samples: int | None = None
    ) -> None:
        self.files, self.read, self.samples = list(files), read, samples

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        files = self.files if info is None else self.files[info.id :: info.num_workers]
        for file in files:
            yield from self.read(file)

    def __repr__(self) -> str:
        return f"Parts({len(self.files)} files, samples={self.samples})"
