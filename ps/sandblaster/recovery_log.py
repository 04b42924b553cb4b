"""`OperationLog`: what a coordinator was told, on the disk before it goes on, so that another can go on from there.

One JSON object a line. What the first says of the run must be so again. An answer that was told after the last commit
is void once the shards are rolled back to that.
"""

import json
import os
from pathlib import Path
from typing import Any

from ...errors import CheckpointError


class OperationLog:
    """run: what must be the same for the log to be of use, plain data. CheckpointError where it is not, or is damaged.

    answers: the numbers of batch 1, 2, 3, ... up to the last commit; committed: how many those are; epoch: the last.
    """

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self.path = path
        self.answers: list[list[float]] = []
        self.committed = 0
        self.epoch = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        known = self._read(run)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if not known:
            self._write({"run": run})

    def answered(self, number: int, answers: list[float]) -> None:
        """The numbers of a batch are there."""
        if number != len(self.answers) + 1:
            raise ValueError(f"batch {number} after {len(self.answers)}")
        self.answers.append(answers)
        self._write({"number": number, "answers": answers})

    def commit(self, number: int) -> None:
        """All shards have written what they hold after a batch."""
        self.committed = number
        self._write({"commit": number})

    def back(self) -> int:
        """All shards shall be again as at the last commit; the new epoch."""
        self.epoch += 1
        del self.answers[self.committed :]
        self._write({"epoch": self.epoch})
        return self.epoch

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _write(self, entry: dict[str, Any]) -> None:
        left = json.dumps(entry).encode() + b"\n"
        try:
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError as error:
            fix = "make room, and go on with --resume"
            raise CheckpointError("E805", f"cannot write {self.path}: {error}", fix=fix) from error

    def _read(self, run: dict[str, Any]) -> bool:
        """Take in what is there; whether there was anything. A line that was cut off by a crash does not count."""
        if not self.path.exists():
            return False
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")
        os.truncate(self.path, len(whole) + 1 if whole else 0)
        try:
            entries = [json.loads(line) for line in whole.splitlines()]
            if entries and "run" not in entries[0]:
                raise ValueError("it does not say of which run it is")
            for entry in entries:
                self._take(entry, run)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError("E803", f"operation log {self.path} cannot be read: {error}") from error
        return bool(entries)

    def _take(self, entry: dict[str, Any], run: dict[str, Any]) -> None:
        if "run" in entry:
            other = [name for name in run if entry["run"].get(name) != run[name]]
            if other:
                told, wanted = entry["run"].get(other[0]), run[other[0]]
                facts = f"{self.path} is of a run with {other[0]} {told}; this one has {wanted}"
                raise CheckpointError("E812", facts, fix="the same options, or --init with its weights")
        elif "answers" in entry:
            if not 1 <= entry["number"] <= len(self.answers) + 1:
                raise ValueError(f"batch {entry['number']} after {len(self.answers)}")
            del self.answers[entry["number"] - 1 :]
            self.answers.append([float(number) for number in entry["answers"]])
        elif "commit" in entry:
            self.committed = int(entry["commit"])
            if self.committed > len(self.answers):
                raise ValueError(f"a commit of batch {self.committed} after {len(self.answers)}")
        else:
            self.epoch = int(entry["epoch"])
            del self.answers[self.committed :]

    def __repr__(self) -> str:
        return f"OperationLog({self.path}, {len(self.answers)} answers, committed={self.committed}, epoch={self.epoch})"
