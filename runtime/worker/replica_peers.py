"""`ReplicaPeers`: the other machines of a replica, as one worker talks to them over the edges of its program."""

from collections.abc import Collection, Sequence

from torch import Tensor

from ...errors import NetworkError
from ...partition.ir.box import sizes
from ..channel.mailbox import Mailbox, MessageKey
from ..channel.message import Message
from .program import Program, TransferEdge
from .trace import Span, Trace

PLAN, TOTAL, DONE = "plan", "total", "done"


class ReplicaPeers:
    """Sends and receives the messages of one program, and checks those that arrive.

    names: channel names by machine. tag: a prefix of message kinds, which tells two programs on one channel apart.
    """

    def __init__(self, program: Program, mailbox: Mailbox, names: Sequence[str], *, tag: str, trace: Trace) -> None:
        self.program, self.mailbox, self.names, self.tag, self.trace = program, mailbox, names, tag, trace
        self._others = [machine for machine in range(program.machines) if machine != program.machine]
        self._plans_agree = False

    @property
    def name(self) -> str:
        """This machine's channel name."""
        return self.names[self.program.machine]

    def check_same_plan(self) -> None:
        """Make sure, once, that all run programs of one cut: else they would wait for messages that nobody sends.

        NetworkError where one does not.
        """
        if self._plans_agree:
            return
        self._plans_agree = True
        for message in self._exchange(PLAN, 0, self.program.plan):
            if message.body.get("value") != self.program.plan:
                raise NetworkError(
                    "E516",
                    f"{message.sender} runs a program of plan {message.body.get('value')}, {self.name} one of "
                    f"{self.program.plan}",
                    fix="start the whole run again from one placement file",
                )

    def total(self, value: float, step: int) -> float:
        """Add up a number over all machines, in one order, so that the sum has the same bits everywhere."""
        values = {self.name: value}
        values |= {message.sender: float(message.body["value"]) for message in self._exchange(TOTAL, step, value)}
        return sum(values[name] for name in self.names[: self.program.machines])

    def send(self, edge: TransferEdge, kind: str, step: int, micro: int, tensors: Sequence[Tensor]) -> None:
        """Send tensors over an edge."""
        message = Message(self.tag + kind, step, micro, edge.edge, tensors=tuple(tensors))
        self._record("send", edge, message, kind)  # before sending, as the copies of the channel count as transfer
        self.mailbox.send(self.names[edge.peer], message)

    def report_done(self, step: int, micro: int) -> None:
        """Tell the machines that would run ahead that a step or micro-batch is done."""
        for machine in self.program.done_listeners:
            self.mailbox.send(self.names[machine], Message(self.tag + DONE, step, micro))

    def await_done(self, step: int, micro: int) -> None:
        """Wait until the machine with the results has done a step or micro-batch, where this one would run ahead."""
        if self.program.done_source >= 0:
            self.wait([(self.names[self.program.done_source], self.tag + DONE, step, micro, 0)], step)

    def wait(self, keys: Collection[MessageKey], step: int) -> Message:
        """Wait for the first message with one of these keys, and record the wait in the trace."""
        begin = self.trace.clock()
        message = self.mailbox.wait(keys)
        self.trace.add(Span("wait", step, begin, self.trace.clock()))
        return message

    def check_tensors(
        self, edge: TransferEdge, message: Message, positions: Sequence[int] | None = None
    ) -> Sequence[Tensor]:
        """Return the tensors of a message; NetworkError where their shapes and dtypes are not those of the edge.

        positions: which pieces of the edge the tensors are; all by default.
        """
        self._record("receive", edge, message, message.kind.removeprefix(self.tag))
        positions, pieces = range(len(edge.pieces)) if positions is None else positions, self.program.pieces
        expected = [
            (sizes(edge.boxes[i]), self.program.tensors[pieces[edge.pieces[i]].tensor].dtype) for i in positions
        ]
        actual = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in message.tensors]
        if actual != [(tuple(shape), dtype) for shape, dtype in expected]:
            raise NetworkError(
                "E515",
                f"{message.sender} sent {self.name} {actual} as {message.kind!r} over edge {edge.edge} (step "
                f"{message.step}); by its own program {self.name} expects {expected}",
                fix="the two run programs of different placements: start the whole run again from one placement file",
            )
        return message.tensors

    def key(self, edge: TransferEdge, kind: str, step: int, micro: int) -> MessageKey:
        """The key by which a message over an edge is waited for."""
        return (self.names[edge.peer], self.tag + kind, step, micro, edge.edge)

    def _exchange(self, kind: str, step: int, value: float | str) -> list[Message]:
        """Send a value to all other machines. Returns their messages, in order of machines."""
        for machine in self._others:
            self.mailbox.send(self.names[machine], Message(self.tag + kind, step, body={"value": value}))
        return [self.mailbox.wait([(self.names[m], self.tag + kind, step, 0, 0)]) for m in self._others]

    def _record(self, kind: str, edge: TransferEdge, message: Message, what: str) -> None:
        now = self.trace.clock()
        span = Span(kind, message.step, now, now, message.micro, edge.edge, edge.peer, message.bytes, what)
        self.trace.add(span)

    def __repr__(self) -> str:
        return f"ReplicaPeers({self.name} to {[self.names[machine] for machine in self._others]})"
