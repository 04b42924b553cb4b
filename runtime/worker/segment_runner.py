"""`SegmentRunner`: runs one segment of one micro-batch, forward and backward; tensors that must travel are returned.

Each segment is one autograd graph. A tensor that enters it from another machine or an earlier segment is a detached
leaf whose gradient adds up; backward starts from the gradients of the tensors that left it.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.task import Data
from ...partition.ir.box import Box, intersect, relative, sizes, slices
from ...partition.ir.graph import OPAQUE, Op
from ...partition.ir.random_ops import RANDOM_OPERAND
from ...partition.operators.generator_state import STATE
from ...partition.operators.kernel import run_box
from ...partition.operators.leaf_module import LEAF_MODULE, LeafModule
from .dropout_masks import sample_masks_after
from .flat_parameters import FlatParameters
from .gather import add_up, gather
from .leaf_modules import LeafModules
from .program import BoxOperand, Program, Segment, Step, TransferEdge

RngLock = AbstractContextManager[Any]
ONLY, FIRST, AGAIN = "only", "first", "again"  # forward passes of a segment; two where it is recomputed


@dataclass
class MicroBatch:
    """One micro-batch on its way.

    forward, backward: how many segments are done; backward counts from the last segment.
    """

    index: int
    batch: dict[str, Tensor]
    masks: dict[str, Tensor]
    forward: int = 0
    backward: int = 0
    loss: float = 0.0
    outputs: dict[int, Tensor] = field(default_factory=dict)  # pieces as computed, with their autograd graph
    inputs: dict[int, Tensor] = field(
        default_factory=dict
    )  # leaves: from other machines, or kept from earlier segments
    read: dict[tuple[str, Box], Tensor] = field(default_factory=dict)  # operands of the segment that runs
    arrived: set[int] = field(default_factory=set)  # edges
    sampled_states: set[str] = field(default_factory=set)  # generator states from which masks were drawn
    returned: dict[int, Sequence[Tensor]] = field(default_factory=dict)  # gradients that came back, by edge
    before: dict[tuple[str, str], Tensor] = field(default_factory=dict)  # buffers before an operator overwrote them

    @property
    def progress(self) -> int:
        """Segments done, forward and backward."""
        return self.forward + self.backward

    def release(self) -> None:
        """Drop all tensors."""
        for held in (self.batch, self.masks, self.outputs, self.inputs, self.returned, self.before):
            held.clear()


def batch_tensors(program: Program, batch: Data, rows: slice) -> dict[str, Tensor]:
    """The inputs and targets of some rows of a batch, by name, in the shape of their axes.

    BadInput where shapes or dtypes are not those that the model was planned for.
    """
    tensors = {}
    for kind, samples in (("input", batch.inputs), ("target", batch.targets)):
        for i, tensor in enumerate(samples):
            info = program.tensors.get(f"{kind}.{i}")
            if info is None:
                continue
            if tensor.shape[1:] != info.shape[1:] or tensor.dtype != getattr(torch, info.dtype):
                raise BadInput(
                    "E343",
                    f"{kind} {i} has samples of {tensor.dtype} {tuple(tensor.shape[1:])}; "
                    f"the model was planned for torch.{info.dtype} {info.shape[1:]}",
                    fix="plan again with such a batch",
                )
            tensors[info.name] = tensor[rows].reshape(info.extents)
    return tensors


def gradient_positions(program: Program, edge: TransferEdge) -> list[int]:
    """Positions of the pieces of an edge whose gradient comes back."""
    return [i for i, piece in enumerate(edge.pieces) if program.pieces[piece].gradient]


class SegmentRunner:
    """Runs segments of one program on one machine's state.

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
        self.program, self.states, self._leaf_modules = program, states, leaf_modules
        self._rng_lock: RngLock = rng_lock or nullcontext()
        self.shared_state: dict[int, Tensor] = {}  # copies of other machines' state, for this step
        self._pass = ONLY  # of the segment that runs
        self._overwritten = {name for op in program.ops.values() for name in op.writes}
        self._read_repeatedly = pieces_read_repeatedly(program)

    def forward(self, micro: MicroBatch, segment: Segment) -> list[list[Tensor]]:
        """Run the steps forward. Returns the tensors to send, one list for each edge of `segment.sends`."""
        self._pass = FIRST if segment.recompute and self.program.training else ONLY
        with torch.set_grad_enabled(self.program.training and self._pass == ONLY):
            self._run(micro, segment)
        for piece in segment.keeps:
            self.enter(micro, piece, micro.outputs[piece].detach())
        if self.program.training:
            micro.loss += sum(float(micro.outputs[piece].detach()) for piece in self._results(segment))
        frames = [self.frames(edge, micro.outputs) for edge in segment.sends]
        if self._pass == FIRST:
            self._forget(micro, segment)
        return frames

    def _run(self, micro: MicroBatch, segment: Segment) -> None:
        for step in segment.steps:
            self._execute(micro, step)
        micro.read.clear()

    def _recompute(self, micro: MicroBatch, segment: Segment) -> None:
        """Run forward once more for backward, of the same inputs, masks and buffers, which stay as they are."""
        kept = {piece: micro.inputs.pop(piece) for piece in segment.keeps}  # here they are results, not leaves
        self._pass = AGAIN
        with torch.enable_grad():
            self._run(micro, segment)
        micro.inputs |= kept

    def _forget(self, micro: MicroBatch, segment: Segment) -> None:
        for step in segment.steps:
            for piece in step.makes:
                del micro.outputs[piece]

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

    def frames(self, edge: TransferEdge, held: dict[int, Tensor]) -> list[Tensor]:
        """The boxes of an edge, cut out of the pieces that hold them."""
        pairs = zip(edge.pieces, edge.boxes, strict=True)
        return [held[p].detach()[slices(relative(box, self.program.pieces[p].box))] for p, box in pairs]

    def _results(self, segment: Segment) -> list[int]:
        outputs = {piece for step in segment.steps for piece in step.makes}
        return [piece for piece in self.program.results if piece in outputs]

    def _execute(self, micro: MicroBatch, step: Step) -> None:
        if not step.op:
            (operand,) = step.operands
            micro.outputs[step.makes[0]] = add_up(step.box, self._pieces_of(micro, operand))
            return
        op = self.program.ops[step.op]
        for operand in step.operands:
            if operand.argument == STATE:
                self._draw_masks_after(micro, operand)
        operands = {operand.argument: self._operand(micro, operand, step) for operand in step.operands}
        draws_itself = op.target == LEAF_MODULE or (op.sharding_rule == OPAQUE and RANDOM_OPERAND in operands)
        with self._rng_lock if draws_itself else nullcontext():
            outputs = run_box(op, step.box, operands, self.program.tensors, leaf_module=self._module(op))
        for operand in step.operands:
            if operand.tensor in op.writes and operand.box is not None and self._pass != AGAIN:
                self._write_back(operand, operand.box, operands[operand.argument])
        for piece, output in zip(step.makes, outputs, strict=True):
            micro.outputs[piece] = output.reshape(sizes(self.program.pieces[piece].box))

    def _write_back(self, operand: BoxOperand, box: Box, tensor: Tensor | None) -> None:
        """Copy an overwritten buffer back into the state, where the operator wrote to a copy of it."""
        assert tensor is not None
        values = tensor.detach().reshape(sizes(box))
        for source in operand.sources:
            piece, held = self._piece_of_state(source), self.program.pieces[source].box
            common = intersect(held, box)
            if common is not None and piece.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
                piece[slices(relative(common, held))] = values[slices(relative(common, box))]

    def _module(self, op: Op) -> LeafModule | None:
        if op.target != LEAF_MODULE or self._leaf_modules is None:
            return None
        return self._leaf_modules.get(op.arguments["name"], training=self.program.training)

    def _draw_masks_after(self, micro: MicroBatch, operand: BoxOperand) -> None:
        """Draw the masks that this machine needs of the run of draws that begins with a generator state."""
        if operand.tensor in micro.sampled_states:
            return
        micro.sampled_states.add(operand.tensor)
        assert operand.box is not None
        state = self._assemble(micro, operand, operand.box)
        with self._rng_lock:
            micro.masks.update(sample_masks_after(self.program, operand.tensor, state))

    def _operand(self, micro: MicroBatch, operand: BoxOperand, step: Step) -> Tensor | None:
        """The tensor that a step reads, in the shape of its dimensions."""
        if operand.box is None:
            return None
        if operand.tensor not in self._overwritten:
            return self._shared_operand(micro, operand, operand.box)
        key = (f"{step.op} {step.box}", operand.argument)
        if self._pass == AGAIN:
            return micro.before.pop(key)
        if self._pass == FIRST:
            micro.before[key] = self._assemble(micro, operand, operand.box).clone()
        if operand.tensor in self.program.ops[step.op].writes:
            return self._shared_operand(micro, operand, operand.box)
        # Backward needs this value of the buffer, which the next micro-batch overwrites.
        return self._assemble(micro, operand, operand.box).clone()

    def _shared_operand(self, micro: MicroBatch, operand: BoxOperand, box: Box) -> Tensor:
        """One tensor for all readers of a box: their gradients are then added in the order of plain torch."""
        key = (operand.tensor, box)
        if key not in micro.read:
            micro.read[key] = self._slice_or_assemble(micro, operand, box)
        return micro.read[key]

    def _slice_or_assemble(self, micro: MicroBatch, operand: BoxOperand, box: Box) -> Tensor:
        """The tensor of a box: a slice of the piece that holds it, shared by all readers, where dimensions allow it."""
        if len(operand.sources) == 1:
            piece = self.program.pieces[operand.sources[0]].box
            where = self.program.tensors[operand.tensor].dim_slices(box, piece)
            if box != piece and where is not None:
                return self._shared_operand(micro, operand, piece)[where]
        return self._assemble(micro, operand, box)

    def _assemble(self, micro: MicroBatch, operand: BoxOperand, box: Box) -> Tensor:
        info = self.program.tensors[operand.tensor]
        if info.kind == "random":
            tensor = micro.masks[info.name][slices(box)]
        elif info.kind in ("input", "target"):
            tensor = micro.batch[info.name][slices(box)]
        elif not operand.sources:  # an empty box: nobody sends it
            tensor = torch.empty(sizes(box), dtype=getattr(torch, info.dtype))
        else:
            tensor = gather(box, self._pieces_of(micro, operand))
        return tensor.reshape(info.local_shape(box))

    def _pieces_of(self, micro: MicroBatch, operand: BoxOperand) -> list[tuple[Box, Tensor]]:
        return [(self.program.pieces[i].box, self._piece(micro, i)) for i in operand.sources]

    def _piece(self, micro: MicroBatch, index: int) -> Tensor:
        for pieces in (micro.inputs, micro.outputs, self.shared_state):
            if index in pieces:
                return pieces[index]
        return self._piece_of_state(index)

    def _piece_of_state(self, index: int) -> Tensor:
        info = self.program.pieces[index]
        return self.states.piece(self.program.tensors[info.tensor], info.box)

    def backward(self, micro: MicroBatch, position: int, micros: int) -> None:
        """Run backward of the segment at `position`, once the gradients of all that left it are there; free its pieces.

        micros: the number of micro-batches of the step, over which the loss is averaged.
        """
        segment = self.program.segments[position]
        if segment.recompute:
            self._recompute(micro, segment)
        gradients = {piece: torch.full_like(micro.outputs[piece], 1.0 / micros) for piece in self._results(segment)}
        for piece in segment.keeps:
            gradient = micro.inputs[piece].grad
            if gradient is not None:
                gradients[piece] = gradient
        for edge in segment.sends:
            returned = micro.returned.pop(edge.edge, ())
            for i, tensor in zip(gradient_positions(self.program, edge), returned, strict=True):
                self._add_gradient(gradients, edge.pieces[i], edge.boxes[i], tensor)
        roots = [piece for piece in gradients if micro.outputs[piece].requires_grad]
        if roots:
            torch.autograd.backward([micro.outputs[p] for p in roots], [gradients[p] for p in roots])
        self._forget(micro, segment)

    def _add_gradient(self, gradients: dict[int, Tensor], piece: int, box: Box, tensor: Tensor) -> None:
        outer = self.program.pieces[piece].box
        if box != outer:
            padded = tensor.new_zeros(sizes(outer))
            padded[slices(relative(box, outer))] = tensor
            tensor = padded
        gradients[piece] = gradients[piece] + tensor if piece in gradients else tensor


def pieces_read_repeatedly(program: Program) -> set[int]:
    """The pieces that more than one segment reads."""
    readers: Counter[int] = Counter()
    for segment in program.segments:
        readers.update({i for step in segment.steps for operand in step.operands for i in operand.sources})
    return {piece for piece, count in readers.items() if count > 1}


def adds_state_gradients_repeatedly(program: Program) -> bool:
    """Whether several segments add to the gradient of the same piece of state."""
    states = {state.piece for state in program.states} | {piece for edge in program.shared_in for piece in edge.pieces}
    return any(program.pieces[piece].gradient for piece in states & pieces_read_repeatedly(program))


def gradients_of(program: Program, edge: TransferEdge, held: dict[int, Tensor]) -> list[Tensor]:
    """The gradients that go back over an edge; zeros where nothing downstream depended on a piece."""
    tensors = [held[edge.pieces[i]] for i in gradient_positions(program, edge)]
    return [torch.zeros_like(t) if t.grad is None else t.grad for t in tensors]
