"""`Changes`: which rows of a slice its last updates changed, so that a fetch brings those alone."""

from collections import deque

import torch
from torch import Tensor

ENTRIES_MOST = 4096


class Changes:
    """Of a slice of so many rows, 0 where it is of no table. It remembers as many updates as change all rows once."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._log: deque[tuple[int, Tensor]] = deque()  # version, and the rows that were changed to make it
        self._count = 0
        self._from = self._to = 0  # the versions between which all changes are known

    def add(self, version: int, rows: Tensor | None) -> None:
        """An update made this version by changing these rows (int64), None for all."""
        if rows is None or version != self._to + 1:
            self._log.clear()
            self._count, self._from, self._to = 0, version, version
            return
        self._log.append((version, rows))
        self._count += rows.numel()
        self._to = version
        while self._count > self._rows or len(self._log) > ENTRIES_MOST:
            self._from, dropped = self._log.popleft()
            self._count -= dropped.numel()

    def since(self, version: int, now: int) -> Tensor | None:
        """Rows (int64, ascending) that have changed from a version to the present one; None where it may be all."""
        if version == now:
            return torch.zeros(0, dtype=torch.int64)
        if now != self._to or not self._from <= version < now:
            return None
        changed = [rows for made, rows in self._log if made > version]
        return torch.unique(torch.cat(changed)) if changed else None

    def __repr__(self) -> str:
        return f"Changes({self._from} to {self._to}, {self._count} of {self._rows} rows)"
