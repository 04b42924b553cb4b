"""`ReplicaPeers`: the other machines of a replica, as one worker talks to them over the edges of its program."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import NetworkError
from ...partition.ir.box import sizes
from ...partition.operators.routed_rows import pack_rows, unpack_rows
from ..channel.mailbox import Mailbox, MessageKey
from ..channel.message import Message
from .program import Program, TransferEdge
from .trace import Span, Trace

PLAN, TOTAL, DONE = "plan", "total", "done"


class ExpectedTensor(NamedTuple):
    """A tensor that travels over an edge. packed: without its rows of zeros, as two (operators.routed_rows)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    packed: bool


@dataclass(frozen=True)
class Route:
    """One kind of message over one edge, worked out ahead.

    kind: as it travels; what: the same without the tag. machine, peer: the other end, and its channel name. pieces:
    those that travel. expected: the tensor of each.
    """

    what: str
    kind: str
    edge: int
    machine: int
    peer: str
    pieces: tuple[int, ...]
    expected: tuple["ExpectedTensor", ...]

    @cached_property
    def packed(self) -> int:
        """How many of them travel as two."""
        return sum(expected.packed for expected in self.expected)

    def key(self, step: int, micro: int) -> MessageKey:
        """The key by which such a message is waited for."""
        return (self.peer, self.kind, step, micro, self.edge)


class ReplicaPeers:
    """Sends and receives the messages of one program, and checks those that arrive.

    names: channel names by machine. tag: a prefix of message kinds, which tells two programs on one channel apart.
    """

    def __init__(self, program: Program, mailbox: Mailbox, names: Sequence[str], *, tag: str, trace: Trace) -> None:
        self.program, self.mailbox, self.names, self.tag, self.trace = program, mailbox, names, tag, trace
        self._others = [machine for machine in range(program.machines) if machine != program.machine]
        self._plans_agree = False
        self.bytes_left_out = 0  # so far, of rows of zeros that did not travel, less the bits that say which

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

    def route(self, what: str, edge: TransferEdge, positions: Sequence[int] | None = None) -> Route:
        """Work out a kind of message over an edge. positions: of its pieces that travel; all by default."""
        positions = range(len(edge.pieces)) if positions is None else positions
        pieces, infos = tuple(edge.pieces[i] for i in positions), self.program.tensors
        expected = tuple(
            ExpectedTensor(sizes(edge.boxes[i]), getattr(torch, info.dtype), info.density < 1)
            for i, info in zip(positions, [infos[self.program.pieces[piece].tensor] for piece in pieces], strict=True)
        )
        return Route(what, self.tag + what, edge.edge, edge.peer, self.names[edge.peer], pieces, expected)

    def send(self, route: Route, step: int, micro: int, tensors: Sequence[Tensor]) -> None:
        """Send tensors over an edge."""
        message = Message(route.kind, step, micro, route.edge, tensors=_pack(route, tensors))
        if route.packed:
            self.bytes_left_out += sum(tensor.nbytes for tensor in tensors) - message.bytes
        self._record("send", route, message)  # before sending, as the copies of the channel count as transfer
        self.mailbox.send(route.peer, message)

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
        self.trace.record("wait", step, begin)
        return message

    def await_tensors(self, route: Route, step: int) -> Sequence[Tensor]:
        """Wait for the tensors of the whole step over a route."""
        return self.check_tensors(route, self.wait([route.key(step, 0)], step))

    def check_tensors(self, route: Route, message: Message) -> Sequence[Tensor]:
        """Return the tensors of a message; NetworkError where their shapes and dtypes are not those of the route."""
        self._record("receive", route, message)
        tensors = _unpack(route, message.tensors)
        wanted = [(one.shape, one.dtype) for one in route.expected]
        if tensors is None or [(tensor.shape, tensor.dtype) for tensor in tensors] != wanted:
            actual = _describe([(tensor.shape, tensor.dtype) for tensor in message.tensors])
            expected = _describe(wanted)
            raise NetworkError(
                "E515",
                f"{message.sender} sent {self.name} {actual} as {message.kind!r} over edge {route.edge} "
                f"(step {message.step}); by its own program {self.name} expects {expected}",
                fix="the two run programs of different placements: start the whole run again from one placement file",
            )
        return tensors

    def _exchange(self, kind: str, step: int, value: float | str) -> list[Message]:
        """Send a value to all other machines. Returns their messages, in order of machines."""
        for machine in self._others:
            self.mailbox.send(self.names[machine], Message(self.tag + kind, step, body={"value": value}))
        return [self.mailbox.wait([(self.names[m], self.tag + kind, step, 0, 0)]) for m in self._others]

    def _record(self, kind: str, route: Route, message: Message) -> None:
        if message.step in self.trace.steps:
            now = self.trace.clock()
            size = message.bytes
            self.trace.add(
                Span(kind, message.step, now, now, message.micro, route.edge, route.machine, size, route.what)
            )

    def __repr__(self) -> str:
        return f"ReplicaPeers({self.name} to {[self.names[machine] for machine in self._others]})"


def _describe(tensors: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(shape), str(dtype).removeprefix("torch.")) for shape, dtype in tensors]


def _pack(route: Route, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return tensors as they travel over a route."""
    if not route.packed:
        return tuple(tensors)
    pairs = zip(route.expected, tensors, strict=True)
    return tuple(part for expected, one in pairs for part in (pack_rows(one) if expected.packed else (one,)))


def _unpack(route: Route, parts: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """Return the tensors of a message of a route; None where the parts cannot be those."""
    if not route.packed:
        return parts
    if len(parts) != len(route.expected) + route.packed:
        return None
    left = iter(parts)
    try:
        return [
            unpack_rows((next(left), next(left)), expected.shape) if expected.packed else next(left)
            for expected in route.expected
        ]
    except ValueError:
        return None
