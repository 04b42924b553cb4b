"""`RecoveryLog`: the answers that a coordinator received, on disk before it proceeds, so that another can take over.

One JSON object a line. The first line describes the run, and a run that goes on from the log must have the same
description. An answer after the last commit is void once the shards are rolled back to that commit.
"""

import json
import os
from pathlib import Path
from typing import Any

from ...errors import CheckpointError


class RecoveryLog:
    """The log of a run, which is created if the file does not exist.

    run: the description of the run, plain data. answers: the scalars of batches 1, 2, 3, ...; committed: the number of
    the last batch that all shards have committed; epoch: the number of the last rollback. Raises CheckpointError if the
    log is of another run, or damaged.
    """

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self.path = path
        self.answers: list[list[float]] = []
        self.committed = 0
        self.epoch = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        exists = self._read(run)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if not exists:
            self._write({"run": run})

    def append_answers(self, number: int, answers: list[float]) -> None:
        """Write the scalars of a batch."""
        if number != len(self.answers) + 1:
            raise ValueError(f"batch {number} after {len(self.answers)}")
        self.answers.append(answers)
        self._write({"number": number, "answers": answers})

    def append_commit(self, number: int) -> None:
        """Write that all shards have on disk what they hold after a batch."""
        self.committed = number
        self._write({"commit": number})

    def begin_epoch(self) -> int:
        """Write that all shards are to be rolled back to the last commit; return the new epoch."""
        self.epoch += 1
        del self.answers[self.committed :]
        self._write({"epoch": self.epoch})
        return self.epoch

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, entry: dict[str, Any]) -> None:
        rest = json.dumps(entry).encode() + b"\n"
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            fix = "make room, and go on with --resume"
            raise CheckpointError("E805", f"cannot write {self.path}: {error}", fix=fix) from error

    def _read(self, run: dict[str, Any]) -> bool:
        """Read an existing log, without a last line that a crash cut off; return whether it has any line."""
        if not self.path.exists():
            return False
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")
        os.truncate(self.path, len(whole) + 1 if whole else 0)
        try:
            entries = [json.loads(line) for line in whole.splitlines()]
            if entries and "run" not in entries[0]:
                raise ValueError("its first line does not describe the run")
            for entry in entries:
                self._replay(entry, run)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError("E803", f"recovery log {self.path} cannot be read: {error}") from error
        return bool(entries)

    def _replay(self, entry: dict[str, Any], run: dict[str, Any]) -> None:
        if "run" in entry:
            different = [name for name in run if entry["run"].get(name) != run[name]]
            if different:
                option = different[0]
                facts = (
                    f"{self.path} is the recovery log of a run with {option} {entry['run'].get(option)}; "
                    f"this run has {run[option]}"
                )
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
        return f"RecoveryLog({self.path}, {len(self.answers)} answers, committed={self.committed}, epoch={self.epoch})"
