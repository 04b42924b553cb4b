"""`Servers`: the shards of a run - who takes the place of one that is lost, and what they have written.

A shard that was lost is started again under a new name and goes on from its journal; workers are told, and push again
what the journal lacks.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from ...errors import CutsetError
from ...ps.checkpoint.journal import Keeping
from ...ps.slices.slicing import of_shard
from ...runtime.launcher.liveness import Loss
from ...runtime.launcher.launcher import Launcher, Role
from ...runtime.channel.message import Message
from ..job.run_config import ShardSetup, shard_name
from ..job.prepare import Prepared
from .roles import SHARD


class Servers:
    """note: is told in words of restarts and of what cannot be written."""

    def __init__(self, job: Prepared, *, note: Callable[[str], None]) -> None:
        self._job, self._note = job, note
        self._times = [0] * job.options.shards
        self._lost_at: dict[int, float] = {}
        self._workers: set[str] = set()  # that can be told something
        self._unsaved: set[tuple[str, str]] = set()  # whose files cannot be written, and why
        self.restarts: list[dict[str, Any]] = []

    @property
    def names(self) -> list[str]:
        """Of the shards as they are now."""
        return [shard_name(index, times) for index, times in enumerate(self._times)]

    @property
    def all_serve(self) -> bool:
        """Whether none is lost at present."""
        return not self._lost_at

    @property
    def spares(self) -> list[str]:
        """Names that shards may get when they are started again."""
        times = range(1, self._job.options.restarts + 1)
        return [shard_name(index, n) for index in range(len(self._times)) for n in times]

    def roles(self) -> list[Role]:
        """All shards as the run begins."""
        return [self._role(index) for index in range(len(self._times))]

    def renew(self, loss: Loss) -> list[Role] | None:
        """What takes the place of a lost shard, None where none was lost; its error if it was lost too often."""
        names = self.names
        index = next((names.index(name) for name in loss.progress if name in names), None)
        if index is None:
            return None
        if self._times[index] == self._job.options.restarts:
            raise final(loss.error, f"shard-{index}", self._times[index])
        self._times[index] += 1
        self._lost_at[index] = time.monotonic()
        why = loss.error.facts.partition("\n")[0]
        self.restarts.append({"shard": index, "code": loss.error.code, "why": why, "seconds": None})
        self._note(f"shard {index} starts again: {why}")
        return [self._role(index)]

    def take(self, message: Message, launcher: Launcher) -> bool:
        """Take in what a role says of this; whether that is all there is to it."""
        match message.kind:
            case "began":
                self._workers.add(message.sender)
                for index in [index for index, times in enumerate(self._times) if times and index not in self._lost_at]:
                    self._tell(launcher, message.sender, index)
            case "serving":
                index = self.names.index(message.sender)
                self.restarts[-1 - self._later(index)]["seconds"] = time.monotonic() - self._lost_at.pop(index)
                for worker in sorted(self._workers):
                    self._tell(launcher, worker, index)
            case "unsaved":
                self._cannot_write(message.sender, message.body["why"])
            case _:
                return False
        return True

    def gone(self, worker: str) -> None:
        """A worker can be told nothing any more."""
        self._workers.discard(worker)

    def _role(self, index: int) -> Role:
        job = self._job
        by_time = job.course.checkpoint_s > 0
        keeping = Keeping(str(job.options.out.resolve()), every=job.checkpoint_versions, asked=by_time)
        setup = ShardSetup(index, of_shard(job.slices, index), job.serving, keeping, self._times[index])
        # Where workers change the shard's memory themselves, that is gone with it; as are notes by which they part.
        lasting = not (job.options.method.whole or job.options.method.together)
        group = f"shard {index}" if job.options.restarts and lasting else ""
        return Role(shard_name(index, self._times[index]), SHARD, msgspec.to_builtins(setup), group=group)

    def _later(self, index: int) -> int:
        """How many restarts of others came after the last of this shard."""
        return next(n for n, restart in enumerate(reversed(self.restarts)) if restart["shard"] == index)

    def _tell(self, launcher: Launcher, worker: str, index: int) -> None:
        launcher.send(worker, Message("moved", body={"shard": index, "name": self.names[index]}))

    def _cannot_write(self, name: str, why: str) -> None:
        """Say it once, not every few seconds of each file."""
        known = name.partition("+")[0], why.partition(":")[0]
        if known not in self._unsaved:
            self._unsaved.add(known)
            self._note(f"files of {name} cannot be written: {why}; the run goes on, and the last good ones stay")


def final(error: CutsetError, who: str, times: int) -> CutsetError:
    """The error of something that was lost once more than it may be started again."""
    if not times:
        return error
    facts, *more = error.facts.split("\n", 1)
    often = "once" if times == 1 else f"{times} times"
    said = f"{facts}; {who} was started again {often} before, and that is all that --restarts allows"
    return type(error)(error.code, "\n".join([said, *more]), fix=error.fix)
