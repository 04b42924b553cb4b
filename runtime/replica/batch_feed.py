"""`BatchFeed`: hands the same batches to all workers of a replica in one process, not far ahead of the user."""

import threading
from collections.abc import Iterable, Iterator

from ...models.task import Data


class BatchFeed:
    """Batches of one source for `readers` threads, each at its own pace.

    ahead: how many batches are handed out before the user has taken the output of the first one.
    """

    def __init__(self, source: Iterable[Data], *, readers: int, ahead: int) -> None:
        self._source = iter(source)
        self._readers, self._ahead = readers, ahead
        self._changed = threading.Condition()
        self._held: dict[
            int, list[Data]
        ] = {}  # batch number -> the batch, once for each reader that has yet to take it
        self._handed_out = 0
        self._consumed = 0
        self._ended = False

    def batches(self) -> Iterator[Data]:
        """Yield all batches, for one reader."""
        number = 0
        while (batch := self._take(number)) is not None:
            yield batch
            number += 1

    def count_consumed(self) -> None:
        """The user has taken the output of one more batch."""
        with self._changed:
            self._consumed += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Hand out no further batch. A batch that one reader has, the others still get, as they compute it together."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take(self, number: int) -> Data | None:
        with self._changed:
            self._changed.wait_for(
                lambda: number < self._handed_out or self._ended or number < self._consumed + self._ahead
            )
            if number == self._handed_out and not self._ended:
                self._fetch(number)
            if number >= self._handed_out:
                return None
            batch = self._held[number].pop()
            if not self._held[number]:
                del self._held[number]
            return batch

    def _fetch(self, number: int) -> None:
        """Take the next batch from the source; what the source raises is raised in this reader."""
        batch = next(self._source, None)
        if batch is None:
            self._ended = True
            self._changed.notify_all()
            return
        self._held[number] = [batch] * self._readers
        self._handed_out = number + 1
        self._changed.notify_all()

    def __repr__(self) -> str:
        return f"BatchFeed({self._handed_out} handed out, {self._consumed} consumed{', ended' if self._ended else ''})"
