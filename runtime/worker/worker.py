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
from ...partition.dataflow.deferred_gradients import order_backward
from ...partition.ir.box import Box
from ..channel.mailbox import Mailbox, message_key
from ..channel.message import Message
from ..held_memory import HeldMemory, return_free_memory
from .dropout_masks import RngLock, mask_seed, sample_masks
from .flat_parameters import FlatParameters
from .leaf_modules import LeafModules
from .prepared_segment import MicroBatch, list_routes
from .program import Program
from .replica_peers import ReplicaPeers, Route
from .schedule import DATAFLOW, Action, schedule
from .segment_runner import (
    BatchTensors,
    SegmentRunner,
    adds_state_gradients_repeatedly,
    find_large_segments,
    gradients_of,
)
from .shared_state import SharedState
from .trace import Trace

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"
STREAM_AHEAD = 4  # times `cap`: micro-batches of a stream that a machine may begin before the first one is done
Pace = Callable[[int, str], float]


class Worker:
    """One machine of a replica; `values` and `gradients` are flat (see `FlatParameters`).

    peers: channel names by machine. tag: sets the messages of two programs on one channel apart. seed: of dropout
    masks. order: name of a schedule (schedule.py), in which the micro-batches of a step run. cap: micro-batches in
    flight at most in dataflow order, the back-pressure; by default as many as there are machines.
    rng_lock: held while torch draws; workers in threads share one, since torch has one generator a process.
    leaf_modules: those of the user's model that the program calls. trace: of some steps. pace: emulates a slower
    machine: the seconds that the segment at a position takes at least, by kind.
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
        self._memory = HeldMemory()
        self.remote = ReplicaPeers(program, mailbox, self.peers, tag=tag, trace=self.trace)
        self.states = states or FlatParameters(program)
        self.seed, self.tag = seed, tag
        self.cap = 1 if program.one_at_a_time else cap or program.machines
        self._backward_whole = adds_state_gradients_repeatedly(program)  # one micro-batch's, else sums are in any order
        self._rng_lock: RngLock = rng_lock or nullcontext()
        self._large = find_large_segments(program)
        self._runner = SegmentRunner(program, self.states, rng_lock=self._rng_lock, leaf_modules=leaf_modules)
        self._batch_tensors = BatchTensors(program)
        self._shared = SharedState(program, self.remote, self.states, self._runner)
        self._routes = [list_routes(self.remote, program, position) for position in range(len(program.segments))]
        self._deferred = {position: one.after for position, one in enumerate(program.segments) if one.deferred}
        passes = order_backward(range(len(program.segments)), self._deferred)
        self._backward_order = [(position, WEIGHTS if left else BACKWARD) for position, left in passes]

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
        self._shared.exchange(step)
        size = self.program.batch
        rows = [slice(i * size, (i + 1) * size) for i in range(count)] if count > 1 else [None]
        micros = list(self._run((self._batch_tensors.take(batch, r) for r in rows), step, count))
        self._shared.return_gradients(step)
        self.remote.report_done(step, 0)
        self._ahead = step
        self._memory.end_step()
        self.trace.record("step", step, begin)
        return sum(m.loss for m in micros) / len(micros) if self.program.results else None

    def await_last_step(self) -> None:
        """Wait until the machine with the loss has done the last step: this one is at most one step ahead."""
        if self._ahead is not None:
            self.remote.await_done(self._ahead, 0)
            self._ahead = None

    def clip(self, max_norm: float, step: int) -> float:
        """Scale the gradients so that their norm over all machines is at most `max_norm`. Returns the norm before.

        It does what torch.nn.utils.clip_grad_norm_ does; every machine of the replica must call it.
        """
        square = float(torch.linalg.vector_norm(self.gradients, dtype=torch.float64)) ** 2
        norm: float = self.remote.total(square, step) ** 0.5
        self.gradients.mul_(min(1.0, max_norm / (norm + 1e-6)))
        return norm

    def broadcast(self, number: int, step: int) -> int:
        """Return the number that machine 0 passes; every machine of the replica must call it."""
        return int(self.remote.total(number if self.program.machine == 0 else 0, step))

    def predict(self, batch: Data, step: int) -> list[tuple[Box, Tensor]]:
        """Compute the output for one batch. Returns the boxes of it that this machine computes, with their tensors."""
        (pieces,) = self.stream([batch], step)
        return pieces

    def stream(self, batches: Iterable[Data], step: int) -> Iterator[list[tuple[Box, Tensor]]]:
        """Yield the outputs for batches, in their order; several batches are on their way at a time.

        Every machine of the replica must be given the same batches. The parameters must not change meanwhile.
        """
        self._shared.exchange(step)
        count, ahead = 0, STREAM_AHEAD * self.cap
        for micro in self._run(self._throttle(batches, step, ahead), step):
            self.remote.report_done(step, micro.index)
            count += 1
            yield [(self.program.pieces[i].box, micro.results[i]) for i in self.program.results]
        for number in range(max(0, count - ahead), count):  # the next stream finds no messages of this one
            self.remote.await_done(step, number)

    def _throttle(self, batches: Iterable[Data], step: int, ahead: int) -> Iterator[dict[str, Tensor]]:
        """Yield the tensors of batches, at most `ahead` batches before the one that the last machine has done."""
        for number, batch in enumerate(batches):
            if number >= ahead:
                self.remote.await_done(step, number - ahead)
            if len(batch) != self.program.batch:
                size = self.program.batch
                raise BadInput("E343", f"{len(batch)} samples to predict; the program takes {size} at a time")
            yield self._batch_tensors.take(batch)

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
            if len(runnable) > 1:  # which is to run depends on what has arrived; one alone is waited for in any case
                self.mailbox.collect()
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
        segments, depth = len(self.program.segments), self.program.depth
        return schedule(self._order, segments=segments, micros=micros, depth=depth, deferred=self._deferred)

    def _admits(self, active: list[MicroBatch], actions: deque[Action] | None) -> bool:
        """Whether to begin another micro-batch: one below the cap, or the next of the schedule."""
        return len(active) < self.cap if actions is None else bool(actions) and not _next(active, actions)

    def _await(self, runnable: list[MicroBatch], step: int) -> None:
        """Wait for a message that lets one of these micro-batches go on."""
        micro_of = {key: micro for micro in runnable for key in micro.wanted}
        message = self.remote.wait(micro_of, step)
        key = message_key(message)
        micro = micro_of[key]
        self._deliver(micro, micro.wanted.pop(key), message)

    def _count_micros(self, batch: Data) -> int:
        rows, size = len(batch), self.program.batch
        if rows == 0 or rows % size:
            raise BadInput("E343", f"a batch of {rows} samples does not divide into micro-batches of {size}")
        return rows // size

    def _begin(self, tensors: dict[str, Tensor], step: int, index: int) -> MicroBatch:
        micro = MicroBatch(index, tensors, {})
        if self.program.random_draws:
            with self._rng_lock:
                micro.masks = sample_masks(self.program, mask_seed(self.seed, step, index))
        self._expect(micro, step)
        return micro

    def _by_urgency(self, active: list[MicroBatch]) -> list[MicroBatch]:
        """The micro-batches that may run: backward before forward, else the oldest first.

        None overtakes an older one, so that running statistics and sums of gradients are always computed in one order.
        """
        if len(active) == 1:
            return active
        oldest, segments = active[:1], len(self.program.segments)
        younger = [m for before, m in pairwise(active) if m.progress < before.progress]
        eligible = oldest + [m for m in younger if m.forward < segments or not self._backward_whole]
        return sorted(eligible, key=lambda m: (m.forward < segments, m.index))

    def _is_complete(self, micro: MicroBatch) -> bool:
        if self.program.training:
            return micro.backward == len(self._backward_order)
        return micro.forward == len(self.program.segments)

    def _advance(self, micro: MicroBatch, step: int, micros: int) -> bool:
        """Run the next segment of a micro-batch if all its inputs have arrived. Returns whether it did."""
        if self._is_complete(micro):
            return True
        for key in list(micro.wanted):
            message = self.mailbox.take_collected(key)
            if message is None:
                return False
            self._deliver(micro, micro.wanted.pop(key), message)
        if micro.forward < len(self.program.segments):
            self._forward(micro, step)
        else:
            self._backward(micro, step, micros)
        return True

    def _expect(self, micro: MicroBatch, step: int) -> None:
        """Note which messages the next segment of a micro-batch waits for."""
        if self._is_complete(micro):
            return
        count = len(self._routes)
        if micro.forward < count:
            routes = [route for route in self._routes[micro.forward].receives if route.edge not in micro.arrived]
        else:
            position, kind = self._backward_order[micro.backward]
            routes = self._routes[position].gradients if kind == BACKWARD else []
        micro.wanted = {route.key(step, micro.index): route for route in routes}

    def _deliver(self, micro: MicroBatch, route: Route, message: Message) -> None:
        tensors = self.remote.check_tensors(route, message)
        if route.what == BACKWARD:
            micro.returned[route.edge] = tensors
            return
        for piece, tensor in zip(route.pieces, tensors, strict=True):
            self._runner.enter(micro, piece, tensor)
        micro.arrived.add(route.edge)

    def _forward(self, micro: MicroBatch, step: int) -> None:
        begin, position = self.trace.clock(), micro.forward
        outputs = self._runner.forward(micro, position)
        self._keep_pace(begin, position, FORWARD)
        self.trace.record(FORWARD, step, begin, micro.index, position)
        for route, frames in zip(self._routes[position].sends, outputs, strict=True):
            self.remote.send(route, step, micro.index, frames)
        micro.forward += 1
        self._expect(micro, step)

    def _backward(self, micro: MicroBatch, step: int, micros: int) -> None:
        begin, (position, kind) = self.trace.clock(), self._backward_order[micro.backward]
        if kind == BACKWARD:
            self._runner.backward(micro, position, micros)
        else:
            self._runner.add_deferred(micro, position)
        if position in self._large:  # else what its gradients took stays, a hole that is too small for larger ones
            return_free_memory()
        self._keep_pace(begin, position, kind)
        self.trace.record(kind, step, begin, micro.index, position)
        for route in self._routes[position].returns if kind == BACKWARD else ():
            self.remote.send(route, step, micro.index, gradients_of(route.pieces, micro.inputs))
        micro.backward += 1
        self._expect(micro, step)

    def _keep_pace(self, begin: float, position: int, kind: str) -> None:
        """Sleep until the emulated machine would be done."""
        if self._pace is not None:
            time.sleep(max(0.0, begin + self._pace(position, kind) - self.trace.clock()))


def _next(active: Sequence[MicroBatch], actions: deque[Action]) -> list[MicroBatch]:
    """The micro-batch of the next action of a schedule as a list, empty if it has not begun."""
    return [micro for micro in active if actions and micro.index == actions[0].micro]
