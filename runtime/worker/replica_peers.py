"""`Peers`: the other machines of a replica as one worker talks to them - over the links of its program, checked."""

from collections.abc import Collection, Sequence

from torch import Tensor

from ...partition.ir.box import sizes
from ...errors import NetworkError
from ..channel.mailbox import Key, Mailbox
from ..channel.message import Message
from .program import Link, Program
from .trace import Span, Trace

PLAN, TOTAL, DONE = "plan", "total", "done"


class Peers:
    """names: channel names by machine. tag: sets the messages of two programs on one channel apart."""

    def __init__(self, program: Program, mailbox: Mailbox, names: Sequence[str], *, tag: str, trace: Trace) -> None:
        self.program, self.mailbox, self.names, self.tag, self.trace = program, mailbox, names, tag, trace
        self._others = [machine for machine in range(program.machines) if machine != program.machine]
        self._agreed = False

    @property
    def name(self) -> str:
        """This machine's channel name."""
        return self.names[self.program.machine]

    def agree(self) -> None:
        """Make sure, once, that all run programs of one cut: else they would wait for messages that nobody sends."""
        if self._agreed:
            return
        self._agreed = True
        for message in self._all(PLAN, 0, self.program.plan):
            if message.body.get("value") != self.program.plan:
                raise NetworkError(
                    "E516",
                    f"{message.sender} runs a program of plan {message.body.get('value')}, {self.name} one of "
                    f"{self.program.plan}",
                    fix="start the whole run again from one placement file",
                )

    def total(self, value: float, step: int) -> float:
        """The sum of a number over all machines, added in one order, so that it is the same everywhere."""
        values = {self.name: value}
        values |= {message.sender: float(message.body["value"]) for message in self._all(TOTAL, step, value)}
        return sum(values[name] for name in self.names[: self.program.machines])

    def send(self, link: Link, kind: str, step: int, micro: int, frames: Sequence[Tensor]) -> None:
        """Send the frames of a link."""
        message = Message(self.tag + kind, step, micro, link.edge, tensors=tuple(frames))
        self._note("send", link, message, kind)  # before: what the channel copies is part of the way
        self.mailbox.send(self.names[link.peer], message)

    def tell_done(self, step: int, micro: int) -> None:
        """Tell those who would run ahead that a step or micro-batch is done."""
        for machine in self.program.tells:
            self.mailbox.send(self.names[machine], Message(self.tag + DONE, step, micro))

    def await_done(self, step: int, micro: int) -> None:
        """Wait until the machine with the results has done it, where this one would run ahead."""
        if self.program.told_by >= 0:
            self.wait([(self.names[self.program.told_by], self.tag + DONE, step, micro, 0)], step)

    def wait(self, wanted: Collection[Key], step: int) -> Message:
        """The first message of the wanted ones."""
        begin = self.trace.clock()
        message = self.mailbox.wait(wanted)
        self.trace.add(Span("wait", step, begin, self.trace.clock()))
        return message

    def received(self, link: Link, message: Message, positions: Sequence[int] | None = None) -> Sequence[Tensor]:
        """The tensors of a message; NetworkError where they are not those that this program expects over the link.

        positions: of the frames of the link that come; all by default.
        """
        self._note("receive", link, message, message.kind.removeprefix(self.tag))
        at, pieces = range(len(link.pieces)) if positions is None else positions, self.program.pieces
        expected = [(sizes(link.boxes[i]), self.program.tensors[pieces[link.pieces[i]].tensor].dtype) for i in at]
        found = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in message.tensors]
        if found != [(tuple(shape), dtype) for shape, dtype in expected]:
            raise NetworkError(
                "E515",
                f"{message.sender} sent {self.name} {found} as {message.kind!r} over edge {link.edge} (step "
                f"{message.step}); by its own program {self.name} expects {expected}",
                fix="the two run programs of different placements: start the whole run again from one placement file",
            )
        return message.tensors

    def key(self, link: Link, kind: str, step: int, micro: int) -> Key:
        """What a message over a link is waited for by."""
        return (self.names[link.peer], self.tag + kind, step, micro, link.edge)

    def _all(self, kind: str, step: int, value: float | str) -> list[Message]:
        """Tell all others a value; what they tell."""
        for machine in self._others:
            self.mailbox.send(self.names[machine], Message(self.tag + kind, step, body={"value": value}))
        return [self.mailbox.wait([(self.names[m], self.tag + kind, step, 0, 0)]) for m in self._others]

    def _note(self, kind: str, link: Link, message: Message, what: str) -> None:
        now = self.trace.clock()
        span = Span(kind, message.step, now, now, message.micro, link.edge, link.peer, message.bytes, what)
        self.trace.add(span)

    def __repr__(self) -> str:
        return f"Peers({self.name} to {[self.names[machine] for machine in self._others]})"
