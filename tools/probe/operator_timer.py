"""`OperatorTimer`: what some instructions take by themselves, in a process that has nothing else to do meanwhile."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from ...partition.ir.box import sizes
from ...runtime.worker.flat_parameters import FlatParameters
from ...runtime.worker.prepared_segment import MicroBatch, with_gradient
from ...runtime.worker.program import Program, Segment, Step, TransferEdge
from ...runtime.worker.segment_runner import SegmentRunner


@dataclass(frozen=True)
class _Input:
    piece: int
    tensor: Tensor


class OperatorTimer:
    """Times some steps of a program as a segment of its own: inputs are there, outputs are sent.

    What these read that is neither state nor an output of theirs is random numbers, zeros where it is integers.
    """

    def __init__(self, program: Program, steps: Sequence[Step], states: FlatParameters) -> None:
        outputs = {piece for step in steps for piece in step.makes}
        state_pieces = {state.piece for state in program.states}
        sources = {piece for step in steps for operand in step.operands for piece in operand.sources}
        inputs = sources - outputs - state_pieces
        out = steps[-1].makes
        edge = TransferEdge(0, 0, out, tuple(program.pieces[piece].box for piece in out))
        segment = Segment(0, tuple(steps), (), (edge,), ())
        program = msgspec.structs.replace(program, segments=(segment,), results=())
        self._runner = SegmentRunner(program, states)
        self._leaves = [_Input(piece, _make_tensor(program, piece)) for piece in sorted(inputs)]
        self._gradients = [_make_tensor(program, out[i]) for i in with_gradient(program, edge)]

    def run(self) -> tuple[float, float]:
        """Run once, and return the seconds forward and backward."""
        micro = MicroBatch(0, {}, {})
        for leaf in self._leaves:
            self._runner.enter(micro, leaf.piece, leaf.tensor.detach())
        clock = choose_clock()
        begin = clock()
        self._runner.forward(micro, 0)
        half = clock()
        micro.returned[0] = self._gradients
        again = clock()
        self._runner.backward(micro, 0, 1)
        return half - begin, clock() - again


def make_random_states(program: Program) -> FlatParameters:
    """Return the state of a program, of small random numbers, zeros where it is integers."""
    states = FlatParameters(program)
    for piece in states.pieces.values():
        if piece.is_floating_point():
            piece.data.normal_(std=0.1)
    return states


def _make_tensor(program: Program, piece: int) -> Tensor:
    info = program.pieces[piece]
    dtype = getattr(torch, program.tensors[info.tensor].dtype)
    if not dtype.is_floating_point:
        return torch.zeros(sizes(info.box), dtype=dtype)
    return torch.randn(sizes(info.box), dtype=dtype)


def choose_clock() -> Callable[[], float]:
    """Return the time of this thread where torch has one: other work on the machine hardly disturbs it."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
