"""`Elasticity`: what may change in a run whose replicas are leased their batches - who takes part, and who does what.

A run by another method has one too, in which nothing changes.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from ...errors import CutsetError
from ...runtime.channel.message import Message
from ..job.run_config import worker_name
from .crew import Crew
from .lease_server import HandingOut, Place
from ..job.prepare import ROLES_MAX, Prepared
from .scale_requests import Standing, Wishes
from .progress_log import steps_settled


class Elasticity:
    """note: is told in words who joins and leaves. wishes: for more or fewer replicas. began: the run did, then."""

    def __init__(self, job: Prepared, *, note: Callable[[str], None], wishes: Wishes | None) -> None:
        options = job.options
        self._note, self._wishes, self._method = note, wishes, options.method
        self._machines, self._starts = job.machines, options.restarts + 1
        self._handing = (
            HandingOut(job.course.batches, job.machines, first=job.course.first * job.course.replicas)
            if options.method.leased
            else None
        )
        at_once = (ROLES_MAX - options.shards) // job.machines
        self._crew = Crew(options.replicas, at_once=at_once, names=job.machines * self._starts)
        self._first = list(self._crew.present)
        self.began = time.monotonic()
        self.changes: list[dict[str, Any]] = []  # replicas that joined or left

    @property
    def leased(self) -> bool:
        """Whether batches are."""
        return self._handing is not None

    @property
    def replicas(self) -> list[int]:
        """Those that take part."""
        return self._crew.present

    @property
    def numbers(self) -> range:
        """Of all replicas that there can ever be."""
        return self._crew.numbers if self.leased else range(len(self._first))

    @property
    def spares(self) -> list[str]:
        """Names of workers that may be started again, or join."""
        starts = [(r, times) for r in self.numbers for times in range(self._starts) if times or r not in self._first]
        return [worker_name(r, m, times) for r, times in starts for m in range(self._machines)]

    def stand(self) -> None:
        """Say to who may wish what is possible."""
        if self._wishes is not None:
            most = self._crew.most if self.leased else 0
            self._wishes.stand(Standing(self._method.name, len(self._crew.present), most))

    def starts(self, replica: int, times: int) -> None:
        """A replica is being started."""
        if self._handing is not None:
            self._handing.begin(replica, times)

    def take(self, place: Place, message: Message) -> None:
        """Take in what a worker says of batches."""
        if self._handing is None:
            return
        if message.kind in ("enter", "lease"):
            self._handing.take(message.sender, place, message)
        elif message.kind == "progress" and "settled" in message.body:
            self._handing.settled(place, message.body["settled"])

    def answers(self) -> list[tuple[str, Message]]:
        """What workers are told of batches now."""
        return [] if self._handing is None else self._handing.answers()

    def joining(self) -> list[tuple[int, dict[str, Any]]]:
        """Replicas that shall be started, by a wish, with what is kept of each. Those that shall leave are told so."""
        wished = None if self._wishes is None else self._wishes.take()
        if wished is None or self._handing is None or self._handing.over:
            return []
        try:
            join, leave = self._crew.become(wished)
        except CutsetError as error:
            self._note(error.facts)
            return []
        for replica in leave:
            self._handing.leave(replica)
        for replica in [*join, *leave]:
            self._note(f"replica {replica} {'joins' if join else 'is asked to leave'}; from now on {wished} in all")
        self.stand()
        return [(replica, self._changed(replica, "joined")) for replica in join]

    def lost(self, replica: int, told: Iterable[tuple[Place, int | str | None]]) -> bool:
        """A replica was lost, whose machines had told this progress at last; whether it is needed again."""
        if self._handing is None:
            return True
        self._handing.lost(replica, [(place, steps_settled(progress)) for place, progress in told])
        return not self._needless(replica)

    def needless(self, absent: Iterable[int]) -> list[int]:
        """Those of the replicas that do not train yet which need not: all is done, or they shall leave.

        They are counted out; whoever asks ends their processes.
        """
        handing = self._handing
        if handing is None:
            return []
        found = [replica for replica in absent if self._needless(replica)]
        for replica in found:
            handing.lost(replica)
            self.left(replica)
        return found

    def trains(self, record: dict[str, Any]) -> None:
        """A replica, of which this was kept when it was started, takes part now."""
        if record in self.changes:
            self._note(f"replica {record['replica']} trains, {record['seconds']:.1f} s after it was asked for")

    def left(self, replica: int) -> None:
        """A replica takes no part any more."""
        self._crew.gone(replica)
        self._changed(replica, "left")
        self._note(f"replica {replica} has left")
        self.stand()

    def leaving(self, replica: int) -> bool:
        """Whether a replica was asked to leave."""
        return replica in self._crew.leaving

    def statistics(self) -> dict[str, Any]:
        """Plain data: who joined and left, and who took how many batches, where they are leased."""
        shares = {} if self._handing is None else self._handing.statistics()
        return {**shares, "changes": self.changes}

    def _needless(self, replica: int) -> bool:
        over = self._handing is not None and self._handing.over
        return replica > 0 and (over or self.leaving(replica))

    def _changed(self, replica: int, how: str) -> dict[str, Any]:
        at_s = time.monotonic() - self.began
        self.changes.append({"replica": replica, "how": how, "at_s": at_s, "seconds": None})
        return self.changes[-1]
