"""`Worker`: one process's part of a replica. It runs its Program as a dataflow: what is ready, backward first."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise

import torch
from torch import Tensor

from ...models.task import Data
from ...partition.ir.box import Box, relative, slices
from ...errors import BadInput
from ..channel.mailbox import Key, Mailbox, key_of
from ..channel.message import Message
from .dropout_masks import draw, draw_seed
from .leaf_modules import OwnModules
from .replica_peers import Peers
from .program import Program
from .schedule import DATAFLOW, Action, schedule
from .segment_runner import MicroBatch, SegmentRunner, Turn, batch_tensors, flowing, gradients_of, trains_again
from .flat_parameters import States
from .trace import Span, Trace

FORWARD, BACKWARD, SHARE, FOLD = "forward", "backward", "share", "fold"
AHEAD = 4  # times `cap`: micro-batches of a stream that a machine may begin before the first of them is done
Pace = Callable[[int, bool], float]


class Worker:
    """One machine of a replica; `values` and `gradients` are flat (see States).

    peers: channel names by machine. tag: sets the messages of two programs on one channel apart. seed: of dropout
    masks. order: name of a schedule (schedule.py), in which the micro-batches of a step run. cap: micro-batches in
    flight at most in dataflow order, the back-pressure; by default as many as there are machines.
    turn: a lock that workers in threads of one process share, since torch has one generator a process. own: the user's
    modules, where the program has blocks by hand. trace: of some steps. pace: emulates a slower machine: the seconds
    that the segment at a position takes at least, backward or not.
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
        order: str = DATAFLOW,
        cap: int = 0,
        turn: Turn | None = None,
        own: OwnModules | None = None,
        trace: Trace | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.program, self.mailbox, self.peers = program, mailbox, list(peers)
        self.trace = trace or Trace(range(0))
        self._order, self._pace = order, pace
        self._ahead: int | None = None  # the step before
        self._to = Peers(program, mailbox, self.peers, tag=tag, trace=self.trace)
        self.states = states or States(program)
        self.seed, self.tag = seed, tag
        self.cap = 1 if program.one_at_a_time else cap or program.machines
        self._backward_whole = trains_again(program)  # one micro-batch after the other, else sums are in any order
        self._turn: Turn = turn or nullcontext()
        self._sent = {link.edge: link for segment in program.segments for link in segment.sends}
        self._runner = SegmentRunner(program, self.states, turn=self._turn, own=own)

    @property
    def values(self) -> Tensor:
        """Trained parameters of this machine, flat."""
        return self.states.values

    @property
    def gradients(self) -> Tensor:
        """Their gradients, added up since they were last zeroed."""
        return self.states.gradients

    def move(self, values: Tensor) -> None:
        """Hold the parameters in another flat buffer from now on."""
        self.states.move(values)

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
        begin, count = self.trace.clock(), self._count(batch)
        if self._ahead is not None:  # at most one step ahead of the machine with the loss
            self._to.await_done(self._ahead, 0)
        self._share(step)
        rows = (slice(i * self.program.batch, (i + 1) * self.program.batch) for i in range(count))
        micros = list(self._run((batch_tensors(self.program, batch, r) for r in rows), step, count))
        self._fold(step)
        self._to.tell_done(step, 0)
        self._ahead = step
        self.trace.add(Span("step", step, begin, self.trace.clock()))
        return sum(m.loss for m in micros) / len(micros) if self.program.results else None

    def clip(self, most: float, step: int) -> float:
        """Scale the gradients so that their norm over all machines is at most `most`; what it was.

        As torch.nn.utils.clip_grad_norm_ does; every machine of the replica must call it.
        """
        square = float(torch.linalg.vector_norm(self.gradients, dtype=torch.float64)) ** 2
        norm: float = self._to.total(square, step) ** 0.5
        self.gradients.mul_(min(1.0, most / (norm + 1e-6)))
        return norm

    def agree(self, number: int, step: int) -> int:
        """The number that machine 0 gives; every machine of the replica must call it."""
        return int(self._to.total(number if self.program.machine == 0 else 0, step))

    def predict(self, batch: Data, step: int) -> list[tuple[Box, Tensor]]:
        """The output for one batch, where this machine computes it: boxes of the output with their tensors."""
        (pieces,) = self.stream([batch], step)
        return pieces

    def stream(self, batches: Iterable[Data], step: int) -> Iterator[list[tuple[Box, Tensor]]]:
        """The outputs for batches, in their order; several are on their way through the machines at a time.

        Every machine of the replica must be given the same batches. The parameters must not change meanwhile.
        """
        self._share(step)
        count, ahead = 0, AHEAD * self.cap
        for micro in self._run(self._held_back(batches, step, ahead), step):
            self._to.tell_done(step, micro.index)
            count += 1
            yield [(self.program.pieces[i].box, micro.made[i]) for i in self.program.results]
        for number in range(max(0, count - ahead), count):  # nothing is left over for the next stream
            self._to.await_done(step, number)

    def _held_back(self, batches: Iterable[Data], step: int, ahead: int) -> Iterator[dict[str, Tensor]]:
        """The tensors of batches, none more than `ahead` batches before what the machine with the results has done."""
        for number, batch in enumerate(batches):
            if number >= ahead:
                self._to.await_done(step, number - ahead)
            yield self._whole(batch)

    def _whole(self, batch: Data) -> dict[str, Tensor]:
        if len(batch) != self.program.batch:
            raise BadInput("E343", f"{len(batch)} samples to predict; the program takes {self.program.batch} at a time")
        return batch_tensors(self.program, batch, slice(None))

    # The loop ----------------------------------------------------------------------------------------------------

    def _run(self, batches: Iterable[dict[str, Tensor]], step: int, micros: int = 0) -> Iterator[MicroBatch]:
        """Run the segments of all micro-batches as their inputs arrive; each micro-batch in its order when it is done.

        micros: how many there are, where that is known and wanted: for training.
        """
        queue, actions = enumerate(batches), self._schedule(micros)
        active = list[MicroBatch]()
        while True:
            while self._admits(active, actions) and (begun := next(queue, None)) is not None:
                active.append(self._begin(begun[1], step, begun[0]))
            if not active:
                return
            runnable = self._by_urgency(active) if actions is None else _next(active, actions)
            if not any(self._advance(micro, step, micros) for micro in runnable):
                self._await(runnable, step)
            elif actions:
                actions.popleft()
            while active and self._complete(active[0]):
                done = active.pop(0)
                if self.program.training:
                    done.release()
                yield done

    def _schedule(self, micros: int) -> deque[Action] | None:
        """The order of a training step; None for dataflow, which streams keep to, and where there is nothing to do."""
        if not self.program.training or not self.program.segments:
            return None
        return schedule(self._order, segments=len(self.program.segments), micros=micros, depth=self.program.depth)

    def _admits(self, active: list[MicroBatch], actions: deque[Action] | None) -> bool:
        """Whether to begin another micro-batch: below the cap, or the next of the schedule."""
        return len(active) < self.cap if actions is None else bool(actions) and not _next(active, actions)

    def _await(self, runnable: list[MicroBatch], step: int) -> None:
        """Wait for a message that lets one of these go on."""
        wanted = {key: m for m in runnable for key in self._wanted(m, step)}
        message = self._to.wait(wanted, step)
        self._deliver(wanted[key_of(message)], message)

    def _count(self, batch: Data) -> int:
        rows, size = len(batch), self.program.batch
        if rows == 0 or rows % size:
            raise BadInput("E343", f"a batch of {rows} samples does not divide into micro-batches of {size}")
        return rows // size

    def _begin(self, tensors: dict[str, Tensor], step: int, index: int) -> MicroBatch:
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
            return [self._to.key(self.program.arrivals[e], FORWARD, step, micro.index) for e in missing]
        sent = segments[len(segments) - 1 - micro.backward].sends
        missing_links = [k for k in sent if flowing(self.program, k) and k.edge not in micro.returned]
        return [self._to.key(link, BACKWARD, step, micro.index) for link in missing_links]

    def _deliver(self, micro: MicroBatch, message: Message) -> None:
        if message.kind == self.tag + BACKWARD:
            link = self._sent[message.edge]
            micro.returned[message.edge] = self._to.received(link, message, flowing(self.program, link))
            return
        link = self.program.arrivals[message.edge]
        for piece, tensor in zip(link.pieces, self._to.received(link, message), strict=True):
            self._runner.enter(micro, piece, tensor)
        micro.arrived.add(message.edge)

    def _forward(self, micro: MicroBatch, step: int) -> None:
        begin, position = self.trace.clock(), micro.forward
        segment = self.program.segments[position]
        sent = self._runner.forward(micro, segment)
        self._keep_pace(begin, position, backward=False)
        self.trace.add(Span(FORWARD, step, begin, self.trace.clock(), micro.index, position))
        for link, frames in zip(segment.sends, sent, strict=True):
            self._to.send(link, FORWARD, step, micro.index, frames)
        micro.forward += 1

    def _backward(self, micro: MicroBatch, step: int, micros: int) -> None:
        begin, position = self.trace.clock(), len(self.program.segments) - 1 - micro.backward
        self._runner.backward(micro, position, micros)
        self._keep_pace(begin, position, backward=True)
        self.trace.add(Span(BACKWARD, step, begin, self.trace.clock(), micro.index, position))
        for edge, first_reader in self.program.returns.items():
            link = self.program.arrivals[edge]
            if first_reader == position and flowing(self.program, link):
                self._to.send(link, BACKWARD, step, micro.index, gradients_of(self.program, link, micro.inputs))
        micro.backward += 1

    def _keep_pace(self, begin: float, position: int, *, backward: bool) -> None:
        """Take as long as the machine that is emulated would."""
        if self._pace is not None:
            time.sleep(max(0.0, begin + self._pace(position, backward) - self.trace.clock()))

    # State that several machines use -----------------------------------------------------------------------------

    def _share(self, step: int) -> None:
        """Send what other machines use of this machine's state, and take what this one uses of theirs."""
        program = self.program
        self._to.agree()
        for link in program.gives:
            held = {p: self.states.pieces[program.pieces[p].tensor, program.pieces[p].box] for p in link.pieces}
            # A copy: the parameters change before the peer has surely read them.
            self._to.send(link, SHARE, step, 0, [frame.clone() for frame in self._runner.frames(link, held)])
        for link in program.takes:
            message = self._to.wait([self._to.key(link, SHARE, step, 0)], step)
            for piece, tensor in zip(link.pieces, self._to.received(link, message), strict=True):
                self._runner.take(piece, tensor)

    def _fold(self, step: int) -> None:
        """Return the gradients of state that belongs to others, and add what others return."""
        program = self.program
        for link in program.takes:
            if flowing(program, link):
                self._to.send(link, FOLD, step, 0, gradients_of(program, link, self._runner.taken))
        for link in program.gives:
            positions = flowing(program, link)
            if not positions:
                continue
            message = self._to.wait([self._to.key(link, FOLD, step, 0)], step)
            for i, tensor in zip(positions, self._to.received(link, message, positions), strict=True):
                info = program.pieces[link.pieces[i]]
                gradient = self.states.pieces[info.tensor, info.box].grad
                assert gradient is not None
                gradient[slices(relative(link.boxes[i], info.box))] += tensor


def _next(active: Sequence[MicroBatch], actions: deque[Action]) -> list[MicroBatch]:
    """The micro-batch of the next action of a schedule, if it has begun."""
    return [micro for micro in active if actions and micro.index == actions[0].micro]
