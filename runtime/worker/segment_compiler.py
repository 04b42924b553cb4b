"""Compiles a segment to a `PreparedSegment`: everything that is the same in every step is worked out here, once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...partition.ir.box import Box, intersect, relative, sizes, slices
from ...partition.ir.graph import OPAQUE, Op, TensorInfo
from ...partition.ir.random_ops import RANDOM_OPERAND
from ...partition.operators.gather import prepare_gather, prepare_sum
from ...partition.operators.generator_state import DRAWS_AT_WILL, STATE
from ...partition.operators.kernel import BoxRun, prepare_box
from ...partition.operators.leaf_module import LEAF_MODULE, LeafModule
from .dropout_masks import RngLock, sample_masks_after
from .flat_parameters import FlatParameters
from .leaf_modules import LeafModules
from .prepared_segment import (
    NOTHING,
    Action,
    MicroBatch,
    PieceReaders,
    Places,
    PreparedSegment,
    cut_box,
    is_read_whole,
    list_made,
)
from .program import BoxOperand, Program, Segment, Step

ONLY, FIRST, AGAIN = "only", "first", "again"  # forward passes of a segment; two where it is recomputed


@dataclass(frozen=True)
class SegmentContext:
    """What the segments of a machine's program run on.

    rng_lock: held while torch's own generator is in use. leaf_modules: the user's, where the program calls some.
    """

    program: Program
    states: FlatParameters
    rng_lock: RngLock
    leaf_modules: LeafModules | None

    def state(self, piece: int) -> Tensor:
        """Return a piece of this machine's state."""
        info = self.program.pieces[piece]
        return self.states.piece(self.program.tensors[info.tensor], info.box)


def compile_segment(context: SegmentContext, segment: Segment, which: str = ONLY) -> PreparedSegment:
    """Compile a segment for one of its passes."""
    return _SegmentCompiler(context, segment, which).compile()


def _pass_on(operands: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """Return the first operand."""
    tensor = operands[0]
    assert tensor is not None
    return (tensor,)


class _SegmentCompiler:
    def __init__(self, context: SegmentContext, segment: Segment, which: str) -> None:
        self._context, self._program, self._segment, self._pass = context, context.program, segment, which
        self._prepared = PreparedSegment([None], [], [], [], [], [])
        self._readers = PieceReaders(self._program, segment)
        self._states = {state.piece for state in self._program.states}
        self._shared = {piece for edge in self._program.shared_in for piece in edge.pieces}
        self._overwritten = {name for op in self._program.ops.values() for name in op.writes}
        self._pieces: dict[int, int] = {}  # places of pieces in the shape of their axes
        self._outputs: dict[int, int] = {}  # places of pieces made here in the shape of their dimensions
        self._operands: dict[tuple[str, Box], int] = {}  # places of boxes of tensors, for all their readers

    def compile(self) -> PreparedSegment:
        for step in self._segment.steps:
            if step.op:
                self._add_box(step)
            else:
                self._add_sum(step)
        prepared = self._prepared
        prepared.made = [self._pieces.get(i, self._outputs.get(i, NOTHING)) for i in list_made(self._segment)]
        if self._pass == ONLY:
            prepared.made += [self._outputs[self._segment.steps[n].makes[0]] for n in self._segment.deferred]
        return prepared

    def _place(self, tensor: Tensor | None = None) -> int:
        self._prepared.start.append(tensor)
        return len(self._prepared.start) - 1

    def _call(self, run: Callable[[Tensor], Tensor], place: int) -> int:
        """Add a call of one tensor; return the place of what it gives."""
        target = self._place()

        def act(micro: MicroBatch, places: Places) -> None:
            places[target] = run(places[place])

        self._prepared.actions.append(act)
        return target

    def _reshape(self, place: int, shape: tuple[int, ...]) -> int:
        return self._call(lambda tensor: tensor.reshape(shape), place)

    # Steps -----------------------------------------------------------------------------------------------------------

    def _add_sum(self, step: Step) -> None:
        (operand,) = step.operands
        add_up = prepare_sum(step.box, [self._program.pieces[i].box for i in operand.sources])
        sources, (piece,) = [self._piece(i) for i in operand.sources], step.makes
        target = self._pieces[piece] = self._place()

        def act(micro: MicroBatch, places: Places) -> None:
            places[target] = add_up([places[i] for i in sources])

        self._prepared.actions.append(act)

    def _add_box(self, step: Step) -> None:
        op, actions = self._program.ops[step.op], self._prepared.actions
        states = [operand for operand in step.operands if operand.argument == STATE]
        operands = [operand for operand in step.operands if operand.argument != STATE]
        actions += [self._draw_masks_after(operand) for operand in states]
        places = [self._operand(operand, step) for operand in operands]
        names = [operand.argument for operand in operands]
        if step.passes:
            run: BoxRun = _pass_on
        else:
            run = prepare_box(op, step.box, names, self._program.tensors, leaf_module=self._leaf_module(op))
        if op.target == LEAF_MODULE or (op.sharding_rule == OPAQUE and RANDOM_OPERAND in names):
            run = self._lock(run)
        if len(step.makes) == 1 and op.target not in DRAWS_AT_WILL:
            self._add_call(run, places, step.makes[0])
        else:
            self._add_calls(run, places, step.makes)
        if self._pass != AGAIN:
            for operand, place in zip(operands, places, strict=True):
                if operand.tensor in op.writes and operand.box is not None:
                    actions.append(self._write_back(operand, operand.box, place))

    def _add_call(self, run: BoxRun, places: list[int], piece: int) -> None:
        """Add an operator with one output, which stays as it is where nobody needs it in another shape."""
        target, info = self._place(), self._program.pieces[piece]
        local, own = self._info(piece).local_shape(info.box), sizes(info.box)

        def act(micro: MicroBatch, places_now: Places) -> None:
            operands = [places_now[i] for i in places]
            (output,) = run(operands)
            if output.shape != local:
                output = output.reshape(local)
            for operand in operands:
                if output is operand:  # its readers are not those of the operand: a node of its own
                    output = output.reshape(local)
            places_now[target] = output

        self._prepared.actions.append(act)
        self._outputs[piece] = target
        if own == local:
            self._pieces[piece] = target
        elif self._readers.of(piece).others:
            self._pieces[piece] = self._reshape(target, own)

    def _add_calls(self, run: BoxRun, places: list[int], makes: Sequence[int]) -> None:
        """Add an operator with several outputs, each of which has a node of its own."""
        targets = [self._place() for _ in makes]
        shapes = [sizes(self._program.pieces[piece].box) for piece in makes]
        self._pieces |= dict(zip(makes, targets, strict=True))

        def act(micro: MicroBatch, places_now: Places) -> None:
            outputs = run([places_now[i] for i in places])
            for target, shape, output in zip(targets, shapes, outputs, strict=True):
                places_now[target] = output.reshape(shape)

        self._prepared.actions.append(act)

    def _lock(self, run: BoxRun) -> BoxRun:
        lock = self._context.rng_lock

        def run_alone(operands: Sequence[Tensor | None]) -> Sequence[Tensor]:
            with lock:
                return run(operands)

        return run_alone

    def _leaf_module(self, op: Op) -> Callable[[], LeafModule] | None:
        modules = self._context.leaf_modules
        if op.target != LEAF_MODULE or modules is None:
            return None
        return partial(modules.get, op.arguments["name"], training=self._program.training)

    def _write_back(self, operand: BoxOperand, box: Box, place: int) -> Action:
        """Copy an overwritten buffer back into the state, where the operator wrote to a copy of it."""
        parts = []
        for source in operand.sources:
            held = self._program.pieces[source].box
            common = intersect(held, box)
            if common is not None:
                parts.append((source, slices(relative(common, held)), slices(relative(common, box))))
        shape, state = sizes(box), self._context.state

        def act(micro: MicroBatch, places: Places) -> None:
            tensor = places[place]
            values = tensor.detach().reshape(shape)
            for source, into, out_of in parts:
                piece = state(source)
                if piece.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
                    piece[into] = values[out_of]

        return act

    def _draw_masks_after(self, operand: BoxOperand) -> Action:
        """Draw the masks that this machine needs of the run of draws that begins with a generator state."""
        assert operand.box is not None
        name, program, lock = operand.tensor, self._program, self._context.rng_lock
        place = self._assemble(operand, operand.box)

        def act(micro: MicroBatch, places: Places) -> None:
            if name not in micro.sampled_states:
                micro.sampled_states.add(name)
                with lock:
                    micro.masks.update(sample_masks_after(program, name, places[place]))

        return act

    # Operands --------------------------------------------------------------------------------------------------------

    def _operand(self, operand: BoxOperand, step: Step) -> int:
        """The place of the tensor that a step reads, in the shape of its dimensions."""
        if operand.box is None:
            return NOTHING
        if operand.tensor not in self._overwritten:
            return self._shared_operand(operand, operand.box)
        key = (f"{step.op} {step.box}", operand.argument)
        if self._pass == AGAIN:
            return self._take_before(key)
        if self._pass == FIRST:
            self._keep_before(key, self._assemble(operand, operand.box))
        if operand.tensor in self._program.ops[step.op].writes:
            return self._shared_operand(operand, operand.box)
        # Backward needs this value of the buffer, which the next micro-batch overwrites.
        return self._call(torch.clone, self._assemble(operand, operand.box))

    def _keep_before(self, key: tuple[str, str], place: int) -> None:
        def act(micro: MicroBatch, places: Places) -> None:
            micro.before[key] = places[place].clone()

        self._prepared.actions.append(act)

    def _take_before(self, key: tuple[str, str]) -> int:
        target = self._place()

        def act(micro: MicroBatch, places: Places) -> None:
            places[target] = micro.before.pop(key)

        self._prepared.actions.append(act)
        return target

    def _shared_operand(self, operand: BoxOperand, box: Box) -> int:
        """One tensor for all readers of a box: their gradients are then added in the order of plain torch."""
        key = (operand.tensor, box)
        if key not in self._operands:
            self._operands[key] = self._slice_or_assemble(operand, box)
        return self._operands[key]

    def _slice_or_assemble(self, operand: BoxOperand, box: Box) -> int:
        """The tensor of a box: a slice of the piece that holds it, shared by all readers, where dimensions allow it."""
        if not is_read_whole(self._program, operand, box):
            return self._assemble(operand, box)
        (source,) = operand.sources
        piece = self._program.pieces[source].box
        if box != piece:
            where = self._info(source).dim_slices(box, piece)
            return self._call(lambda tensor: tensor[where], self._shared_operand(operand, piece))
        local, readers = self._info(source).local_shape(box), self._readers.of(source)
        if source not in self._pieces and source in self._outputs:
            made = self._outputs[source]
            return self._reshape(made, local) if readers.opaque else made
        place = self._piece(source)
        if sizes(box) == local and readers.may_share_a_node:
            return place
        return self._reshape(place, local)

    def _assemble(self, operand: BoxOperand, box: Box) -> int:
        info = self._program.tensors[operand.tensor]
        local = info.local_shape(box)
        if info.kind in ("random", "input", "target"):
            return self._take(info, box, local)
        if not operand.sources:  # an empty box: nobody sends it
            dtype = getattr(torch, info.dtype)
            return self._call(lambda nothing: torch.empty(local, dtype=dtype), NOTHING)
        assemble = prepare_gather(box, [self._program.pieces[i].box for i in operand.sources])
        sources, target, is_shaped = [self._piece(i) for i in operand.sources], self._place(), sizes(box) == local

        def act(micro: MicroBatch, places: Places) -> None:
            tensor = assemble([places[i] for i in sources])
            places[target] = tensor if is_shaped else tensor.reshape(local)

        self._prepared.actions.append(act)
        return target

    def _take(self, info: TensorInfo, box: Box, local: tuple[int, ...]) -> int:
        """The place of a box of a mask or of the batch."""
        target, name, where = self._place(), info.name, cut_box(box, info.box)
        drawn = info.kind == "random"

        def act(micro: MicroBatch, places: Places) -> None:
            tensor = (micro.masks if drawn else micro.batch)[name]
            places[target] = (tensor if where is None else tensor[where]).reshape(local)

        self._prepared.actions.append(act)
        return target

    def _piece(self, index: int) -> int:
        """The place of a piece, in the shape of its axes."""
        if index not in self._pieces:
            self._pieces[index] = self._load(index)
        return self._pieces[index]

    def _load(self, index: int) -> int:
        """The place of a piece that this segment does not make."""
        if index not in self._states:
            place = self._place()
            (self._prepared.shared if index in self._shared else self._prepared.inputs).append((place, index))
            return place
        if not self._context.states.has_other_axes(self._info(index)):
            return self._place(self._context.state(index))
        place = self._place()
        self._prepared.views.append((place, partial(self._context.state, index)))
        return place

    def _info(self, piece: int) -> TensorInfo:
        return self._program.tensors[self._program.pieces[piece].tensor]
