"""Scripted faults of a `MemoryNetwork`, as data.

The messages of each direction, a pair (sender, receiver), are counted from 0.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DropMessage:
    """Message `nth` from `sender` to `receiver` never arrives."""

    sender: str
    receiver: str
    nth: int


@dataclass(frozen=True)
class Repeat:
    """Message `nth` from `sender` to `receiver` arrives `times` more times."""

    sender: str
    receiver: str
    nth: int
    times: int = 1


@dataclass(frozen=True)
class Reorder:
    """Message `nth` from `sender` to `receiver` arrives after the one that follows it."""

    sender: str
    receiver: str
    nth: int


@dataclass(frozen=True)
class Delay:
    """From message `nth` on nothing passes until `by` later messages were sent elsewhere, or all roles wait.

    The order is kept, so a delay is no fault of the network: the roles must tolerate it.
    """

    sender: str
    receiver: str
    nth: int
    by: int


@dataclass(frozen=True)
class Disconnect:
    """Nothing passes between `a` and `b`, either way, once `after` messages went between them."""

    a: str
    b: str
    after: int = 0


@dataclass(frozen=True)
class BlackHole:
    """Messages from `sender` to `receiver` vanish from message `nth` on; the other way all is well."""

    sender: str
    receiver: str
    nth: int = 0


@dataclass(frozen=True)
class Stop:
    """`role` freezes as under SIGSTOP, at the first message of step `step`, or at message `nth` in or out.

    Its calls block until the network is ended.
    """

    role: str
    step: int | None = None
    nth: int | None = None


@dataclass(frozen=True)
class Kill:
    """The channel of `role` raises ProcessLost at the first message of step `step`, or at message `nth` in or out."""

    role: str
    step: int | None = None
    nth: int | None = None


Fault = DropMessage | Repeat | Reorder | Delay | Disconnect | BlackHole | Stop | Kill


@dataclass(frozen=True)
class Fate:
    """What becomes of one message.

    copies: how often it arrives. after_next: whether it arrives after the next one. held_by: how many messages must be
    sent elsewhere before anything passes this way again.
    """

    copies: int = 1
    after_next: bool = False
    held_by: int = 0


def decide_fate(faults: Iterable[Fault], direction: tuple[str, str], *, nth: int, between: int) -> Fate:
    """What the faults do to message `nth` of a direction (sender, receiver).

    between: messages sent before between the two, both ways.
    """
    result = Fate()
    for fault in faults:
        match fault:
            case Disconnect(a, b, after) if {a, b} == set(direction) and between >= after:
                result = replace(result, copies=0)
            case BlackHole(sender, receiver, since) if (sender, receiver) == direction and nth >= since:
                result = replace(result, copies=0)
            case DropMessage(sender, receiver, at) if (sender, receiver, at) == (*direction, nth):
                result = replace(result, copies=0)
            case Repeat(sender, receiver, at, times) if (sender, receiver, at) == (*direction, nth):
                result = replace(result, copies=result.copies + times)
            case Reorder(sender, receiver, at) if (sender, receiver, at) == (*direction, nth):
                result = replace(result, after_next=True)
            case Delay(sender, receiver, at, by) if (sender, receiver, at) == (*direction, nth):
                result = replace(result, held_by=by)
    return result


def random_faults(seed: int, roles: Sequence[str], steps: int) -> list[Fault]:
    """Draw one fault that does harm, at a random place and time within `steps` steps, and up to two that should not.

    The same seed, roles and steps give the same faults. Two roles that never talk make a fault without effect.
    """
    chance = random.Random(seed)
    a, b = chance.sample(list(roles), 2)
    step, nth = chance.randrange(steps), chance.randrange(4 * steps)  # a step has some messages of each direction
    harm: list[Fault] = [
        Kill(a, step=step),
        Kill(a, nth=nth),
        Stop(a, step=step),
        Stop(a, nth=nth),
        Disconnect(a, b, after=nth),
        BlackHole(a, b, nth),
        DropMessage(a, b, nth),
    ]
    faults = [chance.choice(harm)]
    for _ in range(chance.randrange(3)):
        a, b = chance.sample(list(roles), 2)
        at = chance.randrange(4 * steps)
        harmless: list[Fault] = [Repeat(a, b, at), Delay(a, b, at, by=chance.randrange(1, 9))]
        faults.append(chance.choice(harmless))
    return faults
