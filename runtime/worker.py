"""`Worker`: one process's part of a replica. It runs its Program as a dataflow: what is ready, backward first."""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise

import torch
from torch import Tensor

from ..models.task import Data
from ..partition.box import Box, relative, slices
from ..partition.errors import BadInput
from .mailbox import Key, Mailbox, key_of
from .message import Message
from .noise import draw, draw_seed
from .own_modules import OwnModules
from .program import Link, Program
from .segment import MicroBatch, SegmentRunner, Turn, batch_tensors, flowing, gradients_of, trains_again
from .states import States

FORWARD, BACKWARD, SHARE, FOLD = "forward", "backward", "share", "fold"


class Worker:
    """One machine of a replica; `values` and `gradients` are flat (see States).

    peers: channel names by machine. tag: sets the messages of two programs on one channel apart. seed: of dropout
    masks. cap: micro-batches in flight at most, the back-pressure; by default as many as there are machines.
    turn: a lock that workers in threads of one process share, since torch has one generator a process. own: the user's
    modules, where the program has blocks by hand.
    """

    def __init__(
        self,
        program: Program,
        mailbox: Mailbox,
        peers: Sequence[str],
        *,
        states: States | None = None,
        seed: int = 0,
        tag: str = "",
        cap: int = 0,
        turn: Turn | None = None,
        own: OwnModules | None = None,
    ) -> None:
        self.program, self.mailbox, self.peers = program, mailbox, list(peers)
        self.states = states or States(program)
        self.seed, self.tag = seed, tag
        self.cap = 1 if program.one_at_a_time else cap or program.machines
        self._backward_whole = trains_again(program)  # one micro-batch after the other, else sums are in any order
        self._turn: Turn = turn or nullcontext()
        self._runner = SegmentRunner(program, self.states, turn=self._turn, own=own)

    @property
    def values(self) -> Tensor:
        """Trained parameters of this machine, flat."""
        return self.states.values

    @property
    def gradients(self) -> Tensor:
        """Their gradients, added up since they were last zeroed."""
        return self.states.gradients

    @property
    def name(self) -> str:
        """This machine's channel name."""
        return self.peers[self.program.machine]

    def __repr__(self) -> str:
        p = self.program
        where = f"machine {p.machine} of {p.machines}"
        return f"Worker({self.name}, {len(p.segments)} segments, {p.elements} parameters, {where})"

    def step(self, batch: Data, step: int) -> float | None:
        """Forward and backward of a batch: gradients are added up; the loss comes back where this machine computes it.

        The batch is cut into micro-batches of the program's size; the loss is their mean.
        """
        count = self._count(batch)
        self._share(step)
        micros = self._run(batch, step, count)
        self._fold(step)
        return sum(m.loss for m in micros) / len(micros) if self.program.results else None

    def predict(self, batch: Data, step: int) -> list[tuple[Box, Tensor]]:
        """The output for one batch, where this machine computes it: boxes of the output with their tensors."""
        if len(batch) != self.program.batch:
            raise BadInput("E343", f"{len(batch)} samples to predict; the program takes {self.program.batch} at a time")
        self._share(step)
        (micro,) = self._run(batch, step, 1)
        return [(self.program.pieces[i].box, micro.made[i]) for i in self.program.results]

    # The loop ----------------------------------------------------------------------------------------------------

    def _run(self, batch: Data, step: int, count: int) -> list[MicroBatch]:
        """Run the segments of all micro-batches as their inputs arrive; the micro-batches in order."""
        done, active = list[MicroBatch](), list[MicroBatch]()
        while len(done) < count:
            while len(active) < self.cap and len(done) + len(active) < count:
                active.append(self._begin(batch, step, len(done) + len(active)))
            runnable = self._by_urgency(active)
            if not any(self._advance(micro, step, count) for micro in runnable):
                wanted = {key: m for m in runnable for key in self._wanted(m, step)}
                message = self.mailbox.wait(wanted)
                self._deliver(wanted[key_of(message)], message)
            while active and self._complete(active[0]):
                done.append(active.pop(0))
                if self.program.training:
                    done[-1].release()
        return done

    def _count(self, batch: Data) -> int:
        rows, size = len(batch), self.program.batch
        if rows == 0 or rows % size:
            raise BadInput("E343", f"a batch of {rows} samples does not divide into micro-batches of {size}")
        return rows // size

    def _begin(self, batch: Data, step: int, index: int) -> MicroBatch:
        rows = slice(index * self.program.batch, (index + 1) * self.program.batch)
        tensors = batch_tensors(self.program, batch, rows)
        with self._turn:
            drawn = draw(self.program, draw_seed(self.seed, step, index))
        return MicroBatch(index, tensors, drawn)

    def _by_urgency(self, active: list[MicroBatch]) -> list[MicroBatch]:
        """Those that may run: backward before forward, else the oldest first.

        None overtakes an older one, so that running statistics and sums of gradients come about in one order only.
        """
        oldest, segments = active[:1], len(self.program.segments)
        younger = [m for before, m in pairwise(active) if m.progress < before.progress]
        in_turn = oldest + [m for m in younger if m.forward < segments or not self._backward_whole]
        return sorted(in_turn, key=lambda m: (m.forward < segments, m.index))

    def _complete(self, micro: MicroBatch) -> bool:
        done = micro.backward if self.program.training else micro.forward
        return done == len(self.program.segments)

    def _advance(self, micro: MicroBatch, step: int, micros: int) -> bool:
        """Run the next segment of a micro-batch if all it needs has arrived."""
        if self._complete(micro):
            return True
        for key in self._wanted(micro, step):
            message = self.mailbox.take(key)
            if message is None:
                return False
            self._deliver(micro, message)
        if micro.forward < len(self.program.segments):
            self._forward(micro, step)
        else:
            self._backward(micro, step, micros)
        return True

    def _wanted(self, micro: MicroBatch, step: int) -> list[Key]:
        """The messages that the next segment of a micro-batch still waits for."""
        segments = self.program.segments
        if micro.forward < len(segments):
            missing = [e for e in segments[micro.forward].receives if e not in micro.arrived]
            return [self._key(self.program.arrivals[e], FORWARD, step, micro.index) for e in missing]
        sent = segments[len(segments) - 1 - micro.backward].sends
        missing_links = [k for k in sent if flowing(self.program, k) and k.edge not in micro.returned]
        return [self._key(link, BACKWARD, step, micro.index) for link in missing_links]

    def _deliver(self, micro: MicroBatch, message: Message) -> None:
        if message.kind == self.tag + BACKWARD:
            micro.returned[message.edge] = message.tensors
            return
        for piece, tensor in zip(self.program.arrivals[message.edge].pieces, message.tensors, strict=True):
            self._runner.enter(micro, piece, tensor)
        micro.arrived.add(message.edge)

    def _forward(self, micro: MicroBatch, step: int) -> None:
        segment = self.program.segments[micro.forward]
        for link, frames in zip(segment.sends, self._runner.forward(micro, segment), strict=True):
            self._send(link, FORWARD, step, micro.index, frames)
        micro.forward += 1

    def _backward(self, micro: MicroBatch, step: int, micros: int) -> None:
        position = len(self.program.segments) - 1 - micro.backward
        self._runner.backward(micro, position, micros)
        for edge, first_reader in self.program.returns.items():
            link = self.program.arrivals[edge]
            if first_reader == position and flowing(self.program, link):
                self._send(link, BACKWARD, step, micro.index, gradients_of(self.program, link, micro.inputs))
        micro.backward += 1

    # State that several machines use -----------------------------------------------------------------------------

    def _share(self, step: int) -> None:
        """Send what other machines use of this machine's state, and take what this one uses of theirs."""
        program = self.program
        for link in program.gives:
            held = {p: self.states.pieces[program.pieces[p].tensor, program.pieces[p].box] for p in link.pieces}
            # A copy: the parameters change before the peer has surely read them.
            self._send(link, SHARE, step, 0, [frame.clone() for frame in self._runner.frames(link, held)])
        for link in program.takes:
            message = self.mailbox.wait([self._key(link, SHARE, step, 0)])
            for piece, tensor in zip(link.pieces, message.tensors, strict=True):
                self._runner.take(piece, tensor)

    def _fold(self, step: int) -> None:
        """Return the gradients of state that belongs to others, and add what others return."""
        program = self.program
        for link in program.takes:
            if flowing(program, link):
                self._send(link, FOLD, step, 0, gradients_of(program, link, self._runner.taken))
        for link in program.gives:
            positions = flowing(program, link)
            if not positions:
                continue
            message = self.mailbox.wait([self._key(link, FOLD, step, 0)])
            for i, tensor in zip(positions, message.tensors, strict=True):
                info = program.pieces[link.pieces[i]]
                gradient = self.states.pieces[info.tensor, info.box].grad
                assert gradient is not None
                gradient[slices(relative(link.boxes[i], info.box))] += tensor

    def _send(self, link: Link, kind: str, step: int, micro: int, frames: Sequence[torch.Tensor]) -> None:
        message = Message(self.tag + kind, step, micro, link.edge, tensors=tuple(frames))
        self.mailbox.send(self.peers[link.peer], message)

    def _key(self, link: Link, kind: str, step: int, micro: int) -> Key:
        return (self.peers[link.peer], self.tag + kind, step, micro, link.edge)
