"""`Worker`: runs the `Program` of one machine of a replica: what is ready, backward before forward.

Three kinds of tensors travel between machines. Within a step, activations go forward and their gradients come back; for
a convolution cut into image tiles this is the halo exchange, as a machine sends the edges of its tile that its
neighbours' filters reach. Before a step the owner of a parameter or buffer sends it to the machines that use it, too;
after the step their gradients for it come back and are added up (an all-to-one sum, or reduce, to the owner).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.task import Data
from ...partition.ir.box import Box, relative, slices
from ..channel.mailbox import Mailbox, MessageKey, message_key
from ..channel.message import Message
from .dropout_masks import mask_seed, sample_masks
from .flat_parameters import FlatParameters
from .leaf_modules import LeafModules
from .program import Program
from .replica_peers import ReplicaPeers
from .schedule import DATAFLOW, Action, schedule
from .segment_runner import (
    MicroBatch,
    RngLock,
    SegmentRunner,
    adds_state_gradients_repeatedly,
    batch_tensors,
    gradient_positions,
    gradients_of,
)
from .trace import Span, Trace

FORWARD, BACKWARD, SHARED_STATE, STATE_GRADIENT = "forward", "backward", "state", "state_gradient"
STREAM_AHEAD = 4  # times `cap`: micro-batches of a stream that a machine may begin before the first one is done
Pace = Callable[[int, bool], float]


class Worker:
    """One machine of a replica; `values` and `gradients` are flat (see `FlatParameters`).

    peers: channel names by machine. tag: sets the messages of two programs on one channel apart. seed: of dropout
    masks. order: name of a schedule (schedule.py), in which the micro-batches of a step run. cap: micro-batches in
    flight at most in dataflow order, the back-pressure; by default as many as there are machines.
    rng_lock: held while torch draws; workers in threads share one, since torch has one generator a process.
    leaf_modules: those of the user's model that the program calls. trace: of some steps. pace: emulates a slower
    machine: the seconds that the segment at a position takes at least, backward or not.
    """

    def __init__(
        self,
        program: Program,
        mailbox: Mailbox,
        peers: Sequence[str],
        *,
        states: FlatParameters | None = None,
        seed: int = 0,
        tag: str = "",
        order: str = DATAFLOW,
        cap: int = 0,
        rng_lock: RngLock | None = None,
        leaf_modules: LeafModules | None = None,
        trace: Trace | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.program, self.mailbox, self.peers = program, mailbox, list(peers)
        self.trace = trace or Trace(range(0))
        self._order, self._pace = order, pace
        self._ahead: int | None = None  # the step before
        self._remote = ReplicaPeers(program, mailbox, self.peers, tag=tag, trace=self.trace)
        self.states = states or FlatParameters(program)
        self.seed, self.tag = seed, tag
        self.cap = 1 if program.one_at_a_time else cap or program.machines
        self._backward_whole = adds_state_gradients_repeatedly(
            program
        )  # one micro-batch after the other, else sums are in any order
        self._rng_lock: RngLock = rng_lock or nullcontext()
        self._sent_edges = {edge.edge: edge for segment in program.segments for edge in segment.sends}
        self._runner = SegmentRunner(program, self.states, rng_lock=self._rng_lock, leaf_modules=leaf_modules)

    @property
    def values(self) -> Tensor:
        """The trained parameters of this machine, flat [n]."""
        return self.states.values

    @property
    def gradients(self) -> Tensor:
        """The gradients of the parameters, flat [n], added up since they were last zeroed."""
        return self.states.gradients

    def move(self, values: Tensor) -> None:
        """Keep the parameters in another flat buffer from now on, which holds their values already."""
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
        """Run forward and backward of a batch, cut into micro-batches of the program's size, and add to the gradients.

        Returns the loss, the mean over the micro-batches, on the machine that computes it, else None.
        """
        begin, count = self.trace.clock(), self._count_micros(batch)
        self.await_last_step()
        self._exchange_state(step)
        rows = (slice(i * self.program.batch, (i + 1) * self.program.batch) for i in range(count))
        micros = list(self._run((batch_tensors(self.program, batch, r) for r in rows), step, count))
        self._return_state_gradients(step)
        self._remote.report_done(step, 0)
        self._ahead = step
        self.trace.add(Span("step", step, begin, self.trace.clock()))
        return sum(m.loss for m in micros) / len(micros) if self.program.results else None

    def await_last_step(self) -> None:
        """Wait until the machine with the loss has done the last step: this one is at most one step ahead."""
        if self._ahead is not None:
            self._remote.await_done(self._ahead, 0)
            self._ahead = None

    def clip(self, max_norm: float, step: int) -> float:
        """Scale the gradients so that their norm over all machines is at most `max_norm`. Returns the norm before.

        It does what torch.nn.utils.clip_grad_norm_ does; every machine of the replica must call it.
        """
        square = float(torch.linalg.vector_norm(self.gradients, dtype=torch.float64)) ** 2
        norm: float = self._remote.total(square, step) ** 0.5
        self.gradients.mul_(min(1.0, max_norm / (norm + 1e-6)))
        return norm

    def broadcast(self, number: int, step: int) -> int:
        """Return the number that machine 0 passes; every machine of the replica must call it."""
        return int(self._remote.total(number if self.program.machine == 0 else 0, step))

    def predict(self, batch: Data, step: int) -> list[tuple[Box, Tensor]]:
        """Compute the output for one batch. Returns the boxes of it that this machine computes, with their tensors."""
        (pieces,) = self.stream([batch], step)
        return pieces

    def stream(self, batches: Iterable[Data], step: int) -> Iterator[list[tuple[Box, Tensor]]]:
        """Yield the outputs for batches, in their order; several batches are on their way at a time.

        Every machine of the replica must be given the same batches. The parameters must not change meanwhile.
        """
        self._exchange_state(step)
        count, ahead = 0, STREAM_AHEAD * self.cap
        for micro in self._run(self._throttle(batches, step, ahead), step):
            self._remote.report_done(step, micro.index)
            count += 1
            yield [(self.program.pieces[i].box, micro.outputs[i]) for i in self.program.results]
        for number in range(max(0, count - ahead), count):  # the next stream finds no messages of this one
            self._remote.await_done(step, number)

    def _throttle(self, batches: Iterable[Data], step: int, ahead: int) -> Iterator[dict[str, Tensor]]:
        """Yield the tensors of batches, at most `ahead` batches before the one that the last machine has done."""
        for number, batch in enumerate(batches):
            if number >= ahead:
                self._remote.await_done(step, number - ahead)
            yield self._batch_tensors(batch)

    def _batch_tensors(self, batch: Data) -> dict[str, Tensor]:
        if len(batch) != self.program.batch:
            raise BadInput("E343", f"{len(batch)} samples to predict; the program takes {self.program.batch} at a time")
        return batch_tensors(self.program, batch, slice(None))

    # The loop ----------------------------------------------------------------------------------------------------

    def _run(self, batches: Iterable[dict[str, Tensor]], step: int, micros: int = 0) -> Iterator[MicroBatch]:
        """Run the segments of all micro-batches as their inputs arrive; yield each one, in order, when it is done.

        micros: how many there are in a training step; 0 for a stream.
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
            while active and self._is_complete(active[0]):
                done = active.pop(0)
                if self.program.training:
                    done.release()
                yield done

    def _schedule(self, micros: int) -> deque[Action] | None:
        """The order of a training step; None for dataflow order, for streams, and where there is nothing to do."""
        if not self.program.training or not self.program.segments:
            return None
        return schedule(self._order, segments=len(self.program.segments), micros=micros, depth=self.program.depth)

    def _admits(self, active: list[MicroBatch], actions: deque[Action] | None) -> bool:
        """Whether to begin another micro-batch: one below the cap, or the next of the schedule."""
        return len(active) < self.cap if actions is None else bool(actions) and not _next(active, actions)

    def _await(self, runnable: list[MicroBatch], step: int) -> None:
        """Wait for a message that lets one of these micro-batches go on."""
        micro_of = {key: m for m in runnable for key in self._list_wanted_messages(m, step)}
        message = self._remote.wait(micro_of, step)
        self._deliver(micro_of[message_key(message)], message)

    def _count_micros(self, batch: Data) -> int:
        rows, size = len(batch), self.program.batch
        if rows == 0 or rows % size:
            raise BadInput("E343", f"a batch of {rows} samples does not divide into micro-batches of {size}")
        return rows // size

    def _begin(self, tensors: dict[str, Tensor], step: int, index: int) -> MicroBatch:
        with self._rng_lock:
            masks = sample_masks(self.program, mask_seed(self.seed, step, index))
        return MicroBatch(index, tensors, masks)

    def _by_urgency(self, active: list[MicroBatch]) -> list[MicroBatch]:
        """The micro-batches that may run: backward before forward, else the oldest first.

        None overtakes an older one, so that running statistics and sums of gradients are always computed in one order.
        """
        oldest, segments = active[:1], len(self.program.segments)
        younger = [m for before, m in pairwise(active) if m.progress < before.progress]
        eligible = oldest + [m for m in younger if m.forward < segments or not self._backward_whole]
        return sorted(eligible, key=lambda m: (m.forward < segments, m.index))

    def _is_complete(self, micro: MicroBatch) -> bool:
        done = micro.backward if self.program.training else micro.forward
        return done == len(self.program.segments)

    def _advance(self, micro: MicroBatch, step: int, micros: int) -> bool:
        """Run the next segment of a micro-batch if all its inputs have arrived. Returns whether it did."""
        if self._is_complete(micro):
            return True
        for key in self._list_wanted_messages(micro, step):
            message = self.mailbox.take(key)
            if message is None:
                return False
            self._deliver(micro, message)
        if micro.forward < len(self.program.segments):
            self._forward(micro, step)
        else:
            self._backward(micro, step, micros)
        return True

    def _list_wanted_messages(self, micro: MicroBatch, step: int) -> list[MessageKey]:
        """The messages that the next segment of a micro-batch still waits for."""
        segments = self.program.segments
        if micro.forward < len(segments):
            missing = [e for e in segments[micro.forward].receives if e not in micro.arrived]
            return [self._remote.key(self.program.arrivals[e], FORWARD, step, micro.index) for e in missing]
        sends = segments[len(segments) - 1 - micro.backward].sends
        missing_edges = [k for k in sends if gradient_positions(self.program, k) and k.edge not in micro.returned]
        return [self._remote.key(edge, BACKWARD, step, micro.index) for edge in missing_edges]

    def _deliver(self, micro: MicroBatch, message: Message) -> None:
        if message.kind == self.tag + BACKWARD:
            edge = self._sent_edges[message.edge]
            micro.returned[message.edge] = self._remote.check_tensors(
                edge, message, gradient_positions(self.program, edge)
            )
            return
        edge = self.program.arrivals[message.edge]
        for piece, tensor in zip(edge.pieces, self._remote.check_tensors(edge, message), strict=True):
            self._runner.enter(micro, piece, tensor)
        micro.arrived.add(message.edge)

    def _forward(self, micro: MicroBatch, step: int) -> None:
        begin, position = self.trace.clock(), micro.forward
        segment = self.program.segments[position]
        outputs = self._runner.forward(micro, segment)
        self._keep_pace(begin, position, backward=False)
        self.trace.add(Span(FORWARD, step, begin, self.trace.clock(), micro.index, position))
        for edge, frames in zip(segment.sends, outputs, strict=True):
            self._remote.send(edge, FORWARD, step, micro.index, frames)
        micro.forward += 1

    def _backward(self, micro: MicroBatch, step: int, micros: int) -> None:
        begin, position = self.trace.clock(), len(self.program.segments) - 1 - micro.backward
        self._runner.backward(micro, position, micros)
        self._keep_pace(begin, position, backward=True)
        self.trace.add(Span(BACKWARD, step, begin, self.trace.clock(), micro.index, position))
        for number, first_reader in self.program.returns.items():
            edge = self.program.arrivals[number]
            if first_reader == position and gradient_positions(self.program, edge):
                self._remote.send(edge, BACKWARD, step, micro.index, gradients_of(self.program, edge, micro.inputs))
        micro.backward += 1

    def _keep_pace(self, begin: float, position: int, *, backward: bool) -> None:
        """Sleep until the emulated machine would be done."""
        if self._pace is not None:
            time.sleep(max(0.0, begin + self._pace(position, backward) - self.trace.clock()))

    # State that several machines use -----------------------------------------------------------------------------

    def _exchange_state(self, step: int) -> None:
        """Send state of this machine that others use, and receive what this one uses of theirs."""
        program = self.program
        self._remote.check_same_plan()
        self.states.refresh()
        for edge in program.shared_out:
            own = {p: program.pieces[p] for p in edge.pieces}
            held = {p: self.states.piece(program.tensors[info.tensor], info.box) for p, info in own.items()}
            # A copy: the parameters change before the peer has surely read them.
            self._remote.send(edge, SHARED_STATE, step, 0, [frame.clone() for frame in self._runner.frames(edge, held)])
        for edge in program.shared_in:
            message = self._remote.wait([self._remote.key(edge, SHARED_STATE, step, 0)], step)
            for piece, tensor in zip(edge.pieces, self._remote.check_tensors(edge, message), strict=True):
                self._runner.take(piece, tensor)

    def _return_state_gradients(self, step: int) -> None:
        """Send the gradients of others' state back to its owners, and add up those that come back for ours."""
        program = self.program
        for edge in program.shared_in:
            if gradient_positions(program, edge):
                self._remote.send(edge, STATE_GRADIENT, step, 0, gradients_of(program, edge, self._runner.shared_state))
        for edge in program.shared_out:
            positions = gradient_positions(program, edge)
            if not positions:
                continue
            message = self._remote.wait([self._remote.key(edge, STATE_GRADIENT, step, 0)], step)
            for i, tensor in zip(positions, self._remote.check_tensors(edge, message, positions), strict=True):
                info = program.pieces[edge.pieces[i]]
                gradient = self.states.pieces[info.tensor, info.box].grad
                assert gradient is not None
                gradient[slices(relative(edge.boxes[i], info.box))] += tensor
        self.states.collect()


def _next(active: Sequence[MicroBatch], actions: deque[Action]) -> list[MicroBatch]:
    """The micro-batch of the next action of a schedule as a list, empty if it has not begun."""
    return [micro for micro in active if actions and micro.index == actions[0].micro]
