"""`SegmentRunner`: runs one segment of one micro-batch, forward and backward; tensors that must travel are returned.

Each segment is one autograd graph. A tensor that enters it from another machine or an earlier segment is a detached
leaf whose gradient adds up; backward starts from the gradients of the tensors that left it. Gradients of parameters may
be left for later (`Segment.deferred`): backward then computes those of the outputs of their steps.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.task import Data
from ...partition.ir.box import volume
from .dropout_masks import RngLock
from .flat_parameters import FlatParameters
from .leaf_modules import LeafModules
from .prepared_segment import MicroBatch, PreparedSegment, SegmentEnds, Slices, list_sources, take_frames
from .program import Program, Segment
from .segment_compiler import AGAIN, FIRST, ONLY, SegmentContext, compile_segment

LARGE_BYTES = 256 << 20  # of a piece of state, whose gradient a worker rather gives back to the system than keeps


class BatchTensors:
    """What a program reads of a batch: inputs and targets by name, in the shape of their axes."""

    def __init__(self, program: Program) -> None:
        infos = [info for info in program.tensors.values() if info.kind in ("input", "target")]
        self._read = [
            (info.kind, int(info.name.removeprefix(f"{info.kind}.")), info, getattr(torch, info.dtype), info.extents)
            for info in infos
        ]

    def take(self, batch: Data, rows: slice | None = None) -> dict[str, Tensor]:
        """Return the tensors of a batch, or of some of its rows.

        BadInput where shapes or dtypes are not those that the model was planned for.
        """
        tensors = {}
        for kind, i, info, dtype, extents in self._read:
            tensor = (batch.inputs if kind == "input" else batch.targets)[i]
            if tensor.shape[1:] != info.shape[1:] or tensor.dtype != dtype:
                raise BadInput(
                    "E343",
                    f"{kind} {i} has samples of {tensor.dtype} {tuple(tensor.shape[1:])}; "
                    f"the model was planned for torch.{info.dtype} {info.shape[1:]}",
                    fix="plan again with such a batch",
                )
            tensors[info.name] = (tensor if rows is None else tensor[rows]).reshape(extents)
        return tensors


class SegmentRunner:
    """Runs segments of one program on one machine's state, each compiled when it first runs.

    rng_lock: held while torch's own generator is in use. leaf_modules: the user's, where the program calls some.
    """

    def __init__(
        self,
        program: Program,
        states: FlatParameters,
        *,
        rng_lock: RngLock | None = None,
        leaf_modules: LeafModules | None = None,
    ) -> None:
        self.program = program
        self._context = SegmentContext(program, states, rng_lock or nullcontext(), leaf_modules)
        self.shared_state: dict[int, Tensor] = {}  # copies of other machines' state, for this step
        self._compiled: dict[tuple[int, str], PreparedSegment] = {}
        self._ends = [SegmentEnds(program, segment) for segment in program.segments]
        self._read_repeatedly = pieces_read_repeatedly(program)
        self._owned = {state.piece for state in program.states}
        self._deferred = [self._list_deferred(segment) for segment in program.segments]

    def forward(self, micro: MicroBatch, position: int) -> list[list[Tensor]]:
        """Run the segment at `position` forward. Returns the tensors to send, one list for each edge of its `sends`."""
        training, ends = self.program.training, self._ends[position]
        which = FIRST if training and self.program.segments[position].recompute else ONLY
        with torch.set_grad_enabled(training and which == ONLY):
            made = self._get(position, which).run(micro, self.shared_state)
        for piece, i in ends.keeps:
            self.enter(micro, piece, made[i].detach())
        if training:
            micro.loss += sum([float(made[i].detach()) for _, i in ends.results])
        else:
            micro.results |= {piece: made[i] for piece, i in ends.results}
        if training and which == ONLY:
            micro.made[position] = made
        return [take_frames(frames, made) for frames in ends.frames]

    def _get(self, position: int, which: str) -> PreparedSegment:
        key = (position, which)
        if key not in self._compiled:
            self._compiled[key] = compile_segment(self._context, self.program.segments[position], which)
        return self._compiled[key]

    def _list_deferred(self, segment: Segment) -> list[set[int]]:
        """Return the pieces of parameters that get their gradients later, by the step that reads them."""
        steps, tensors, pieces = [segment.steps[n] for n in segment.deferred], self.program.tensors, self.program.pieces
        return [
            {i for i in list_sources([step]) if pieces[i].gradient and tensors[pieces[i].tensor].kind == "parameter"}
            for step in steps
        ]

    def state(self, piece: int) -> Tensor:
        """Return a piece of this machine's state."""
        return self._context.state(piece)

    def enter(self, micro: MicroBatch, piece: int, tensor: Tensor) -> None:
        """Make a tensor a leaf of this micro-batch."""
        micro.inputs[piece] = self._leaf(piece, tensor, summed=piece in self._read_repeatedly)

    def take(self, piece: int, tensor: Tensor) -> None:
        """Make a copy of another machine's state a leaf of this step."""
        self.shared_state[piece] = self._leaf(piece, tensor, summed=True)

    def _leaf(self, piece: int, tensor: Tensor, *, summed: bool) -> Tensor:
        """Make a leaf. summed: several backward passes add to its gradient, which then gets memory of its own.

        The first gradient of a leaf is often a view of the one that backward began with, and adding to it in place
        would change that one, and whatever else is a view of it.
        """
        leaf = tensor.requires_grad_(self.program.pieces[piece].gradient)
        if leaf.requires_grad and summed:
            dense = torch.zeros_like(leaf)
            leaf.grad = dense if dense.stride() == leaf.stride() else torch.zeros(leaf.shape, dtype=leaf.dtype)
        return leaf

    def backward(self, micro: MicroBatch, position: int, micros: int) -> None:
        """Run backward of the segment at `position`, once the gradients of all that left it are there; free its pieces.

        micros: the number of micro-batches of the step, over which the loss is averaged.
        """
        ends = self._ends[position]
        if self.program.segments[position].recompute:  # once more, of the same inputs, masks and buffers, which stay
            with torch.enable_grad():
                made = self._get(position, AGAIN).run(micro, self.shared_state)
        else:
            made = micro.made.pop(position)
        gradients = {i: torch.full_like(made[i], 1.0 / micros) for _, i in ends.results}
        for piece, i in ends.keeps:
            gradient = micro.inputs[piece].grad
            if gradient is not None:
                gradients[i] = gradient
        for edge, parts in ends.gradients:
            returned = micro.returned.pop(edge, ())
            for (i, shape, where), tensor in zip(parts, returned, strict=True):
                whole = _pad(tensor, shape, where)
                gradients[i] = gradients[i] + whole if i in gradients else whole
        roots = [i for i in gradients if made[i].requires_grad]
        if not roots:
            return
        given = [made[i] for i in roots], [gradients[i] for i in roots]
        if self._deferred[position]:
            self._leave_parameters(micro, position, made[ends.count :], *given)
        else:
            torch.autograd.backward(*given)

    def _leave_parameters(
        self,
        micro: MicroBatch,
        position: int,
        outputs: list[Tensor],
        roots: Sequence[Tensor],
        gradients: Sequence[Tensor],
    ) -> None:
        """Compute all gradients but those of the parameters of steps that leave them; keep those of their outputs.

        torch.autograd.backward would copy the gradients of outputs.
        """
        leaves = self._list_leaves(micro, self._ends[position].reads.difference(*self._deferred[position]))
        found = torch.autograd.grad(
            roots, [*leaves, *outputs], grad_outputs=gradients, retain_graph=True, allow_unused=True
        )
        for leaf, gradient in zip(leaves, found, strict=False):
            if gradient is not None:
                leaf.grad = gradient if leaf.grad is None else leaf.grad.add_(gradient)
        micro.left[position] = list(zip(outputs, found[len(leaves) :], strict=True))

    def add_deferred(self, micro: MicroBatch, position: int) -> None:
        """Add the gradients of parameters that backward of the segment at `position` left, and free its pieces."""
        if position not in micro.left:  # no gradient came back
            return
        for (output, gradient), pieces in zip(micro.left.pop(position), self._deferred[position], strict=True):
            if gradient is not None:
                torch.autograd.backward([output], [gradient], inputs=self._list_leaves(micro, pieces))

    def _list_leaves(self, micro: MicroBatch, pieces: Collection[int]) -> list[Tensor]:
        """Return those of these pieces, none of which the segment makes, that want a gradient."""
        tensors = [
            self.state(piece) if piece in self._owned else self.shared_state.get(piece, micro.inputs.get(piece))
            for piece in sorted(pieces)
        ]
        return [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]


def _pad(gradient: Tensor, shape: tuple[int, ...], where: Slices) -> Tensor:
    """Return the gradient of a whole piece, of the gradient of a part of it."""
    if where is None:
        return gradient
    padded = gradient.new_zeros(shape)
    padded[where] = gradient
    return padded


def pieces_read_repeatedly(program: Program) -> set[int]:
    """The pieces that more than one segment reads."""
    readers: Counter[int] = Counter()
    for segment in program.segments:
        readers.update({i for step in segment.steps for operand in step.operands for i in operand.sources})
    return {piece for piece, count in readers.items() if count > 1}


def find_large_segments(program: Program) -> set[int]:
    """The positions of segments that train a piece of state of LARGE_BYTES or more."""
    infos = {state.piece: program.pieces[state.piece] for state in program.states}
    large = {
        piece
        for piece, info in infos.items()
        if info.gradient and volume(info.box) * program.tensors[info.tensor].element_bytes >= LARGE_BYTES
    }
    return {
        position
        for position, segment in enumerate(program.segments)
        if any(not large.isdisjoint(operand.sources) for step in segment.steps for operand in step.operands)
    }


def adds_state_gradients_repeatedly(program: Program) -> bool:
    """Whether several segments add to the gradient of the same piece of state."""
    states = {state.piece for state in program.states} | {piece for edge in program.shared_in for piece in edge.pieces}
    return any(program.pieces[piece].gradient for piece in states & pieces_read_repeatedly(program))


def gradients_of(pieces: Sequence[int], held: dict[int, Tensor]) -> list[Tensor]:
    """The gradients of pieces; zeros where nothing downstream depended on one."""
    tensors = [held[piece] for piece in pieces]
    return [torch.zeros_like(t) if t.grad is None else t.grad for t in tensors]
