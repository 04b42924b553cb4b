"""`Feed`: the same batches for all workers of a replica in one process, each at its pace, not far ahead of the user."""

import threading
from collections.abc import Iterable, Iterator

from ...models.task import Data


class Feed:
    """Batches of one source for `readers` threads. ahead: how many are handed out before the first is consumed."""

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
        """All batches, for one reader."""
        number = 0
        while (batch := self._take(number)) is not None:
            yield batch
            number += 1

    def consumed(self) -> None:
        """The output of one more batch was taken by the user."""
        with self._changed:
            self._consumed += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Hand out no further batch; what one reader has, the others still get, as they compute it together."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take(self, number: int) -> Data | None:
        with self._changed:
            self._changed.wait_for(
                lambda: number < self._handed_out or self._ended or number < self._consumed + self._ahead
            )
            if number == self._handed_out and not self._ended:
                self._draw(number)
            if number >= self._handed_out:
                return None
            batch = self._held[number].pop()
            if not self._held[number]:
                del self._held[number]
            return batch

    def _draw(self, number: int) -> None:
        """Take the next batch from the source. Whatever that raises is this reader's to bear."""
        batch = next(self._source, None)
        if batch is None:
            self._ended = True
            self._changed.notify_all()
            return
        self._held[number] = [batch] * self._readers
        self._handed_out = number + 1
        self._changed.notify_all()

    def __repr__(self) -> str:
        return f"Feed({self._handed_out} handed out, {self._consumed} consumed{', ended' if self._ended else ''})"
