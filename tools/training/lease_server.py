"""`HandingOut`: answers the questions of workers for batches, and takes back what a lost replica has not done.

  enter  {step}                   "entered" {step}, that the replica's own count of steps begins with: the one that the
                                  first of its machines has named
  lease  {idle, settled, pace_s}  "leased" {first, count}; the edge is the number of the question

settled: steps, by the replica's own count, of which the shards have all. For the rest see ps/leases.py.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .batch_leases import Leases, Start
from ...runtime.channel.message import Message

Place = tuple[int, int]  # replica and machine


@dataclass
class _Member:
    """A start of a replica. begun: the step that it begins with; settled: by machine."""

    start: Start
    begun: int = 0
    settled: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Question:
    """One that is not answered yet."""

    sender: str
    member: _Member
    chunk: int
    idle: bool
    pace_s: float | None


class HandingOut:
    """Of batches `first` to `batches` - 1 to replicas of so many machines each."""

    def __init__(self, batches: int, machines: int, *, first: int = 0) -> None:
        self.leases = Leases(batches, first=first)
        self._machines = machines
        self._members: dict[int, _Member] = {}
        self._questions: list[_Question] = []
        self._answers: list[tuple[str, Message]] = []

    @property
    def over(self) -> bool:
        """Whether all batches are done."""
        return self.leases.over

    def begin(self, replica: int, times: int) -> None:
        """A replica is being started."""
        self._members[replica] = _Member((replica, times))

    def take(self, sender: str, place: Place, message: Message) -> None:
        """Take in a question."""
        member = self._members[place[0]]
        if message.kind == "enter":
            if not member.settled:
                member.begun = int(message.body["step"])
            member.settled[place[1]] = member.begun
            self._answers.append((sender, Message("entered", body={"step": member.begun})))
            return
        self.settled(place, message.body["settled"])
        question = _Question(sender, member, message.edge, bool(message.body["idle"]), _pace(message.body))
        self._questions.append(question)

    def settled(self, place: Place, step: int) -> None:
        """The shards have all that one machine has pushed of the steps before this one."""
        member = self._members[place[0]]
        member.settled[place[1]] = max(step, member.settled.get(place[1], 0))
        if len(member.settled) == self._machines:
            self.leases.done(member.start, min(member.settled.values()) - member.begun)

    def answers(self) -> list[tuple[str, Message]]:
        """What can be said now."""
        waiting = []
        for question in self._questions:
            lease = self.leases.ask(question.member.start, question.chunk, pace_s=question.pace_s, idle=question.idle)
            if lease is None:
                waiting.append(question)
                continue
            body = {"first": lease.first, "count": lease.count}
            self._answers.append((question.sender, Message("leased", edge=question.chunk, body=body)))
        self._questions = waiting
        said, self._answers = self._answers, []
        return said

    def leave(self, replica: int) -> None:
        """The replica shall do what it has, and end."""
        self.leases.leave(self._members[replica].start)

    def lost(self, replica: int, settled: Iterable[tuple[Place, int]] = ()) -> int:
        """Take back what a replica has not done; how many batches. settled: the last that its machines have told."""
        for place, step in settled:
            self.settled(place, step)
        member = self._members.pop(replica)
        self._questions = [question for question in self._questions if question.member is not member]
        return self.leases.lost(member.start)

    def statistics(self) -> dict[str, Any]:
        """Plain data: batches, and by replica those that it took for good, and that may have been computed twice."""
        taken = {str(replica): count for replica, count in sorted(self.leases.taken.items())}
        repeated = {str(replica): count for replica, count in sorted(self.leases.repeated.items())}
        return {"batches": self.leases.batches, "taken": taken, "repeated": repeated}

    def __repr__(self) -> str:
        return f"HandingOut({self.leases}, {len(self._questions)} wait)"


def _pace(body: dict[str, Any]) -> float | None:
    """Seconds of a batch, if they make sense."""
    value = body.get("pace_s")
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0 else None
