"""`PreparedSegment`: a segment as a list of calls that are bound ahead, so that a step runs these and looks nothing up.

Tensors are in numbered places, as values are in the registers of a processor. A call reads some places and fills one:
it reads an operand, or computes a box of an operator. `compile_segment` writes this list once (segment_compiler.py).

Bits: autograd adds up the gradients of all readers of a tensor in the order in which it was read, a sum for each node
of its graph. So the calls make the nodes that matter in the order of the program's steps, one node for all readers of
one box, as in plain torch; a node that changes no shape is left out only where that changes no order of a sum.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...partition.ir.box import Box, relative, sizes, slices
from ...partition.operators.generator_state import DRAWS_AT_WILL, STATE
from ..channel.mailbox import MessageKey
from .program import BoxOperand, PieceInfo, Program, Segment, Step, TransferEdge
from .replica_peers import ReplicaPeers, Route

NOTHING = 0  # the place of an operand of which a box reads nothing
Places = list[Any]  # tensors by place; None at NOTHING
Slices = tuple[slice, ...] | None


@dataclass
class MicroBatch:
    """One micro-batch on its way.

    forward: how many segments are done. backward: how much of the program's order of backward is (`order_backward`).
    """

    index: int
    batch: dict[str, Tensor]
    masks: dict[str, Tensor]
    forward: int = 0
    backward: int = 0
    loss: float = 0.0
    results: dict[int, Tensor] = field(default_factory=dict)  # pieces of what is read of the output
    made: dict[int, list[Tensor]] = field(
        default_factory=dict
    )  # by segment, the pieces that it has made, with their autograd graph
    inputs: dict[int, Tensor] = field(
        default_factory=dict
    )  # leaves: from other machines, or kept from earlier segments
    arrived: set[int] = field(default_factory=set)  # edges
    wanted: dict[MessageKey, Route] = field(default_factory=dict)  # messages that the next segment waits for
    sampled_states: set[str] = field(default_factory=set)  # generator states from which masks were drawn
    returned: dict[int, Sequence[Tensor]] = field(default_factory=dict)  # gradients that came back, by edge
    left: dict[int, list[tuple[Tensor, Tensor | None]]] = field(
        default_factory=dict
    )  # by segment, what the steps made whose parameters get their gradients later, with their own gradients
    before: dict[tuple[str, str], Tensor] = field(default_factory=dict)  # buffers before an operator overwrote them

    @property
    def progress(self) -> int:
        """What is done, forward and backward."""
        return self.forward + self.backward

    def release(self) -> None:
        """Drop all tensors."""
        tensors = (self.batch, self.masks, self.results, self.made, self.inputs, self.returned, self.left, self.before)
        for held in tensors:
            held.clear()


Action = Callable[[MicroBatch, Places], None]


@dataclass
class PreparedSegment:
    """The calls of a segment, `actions`, and where they find their tensors and leave them.

    start: the places before the first call, with pieces of this machine's state. inputs, shared: places of the pieces
    that have arrived or were kept, and of copies of other machines' state. views: places of the state that is a view,
    with what makes it. made: the places of all pieces that the segment makes; behind them, of what the steps make whose
    parameters get their gradients later.
    """

    start: Places
    inputs: list[tuple[int, int]]
    shared: list[tuple[int, int]]
    views: list[tuple[int, Callable[[], Tensor]]]
    actions: list[Action]
    made: list[int]

    def run(self, micro: MicroBatch, shared_state: dict[int, Tensor]) -> list[Tensor]:
        """Run the calls. Returns what is in the places of `made`, with its autograd graph."""
        places = self.start.copy()
        for place, piece in self.inputs:
            places[place] = micro.inputs[piece]
        for place, piece in self.shared:
            places[place] = shared_state[piece]
        for place, view in self.views:
            places[place] = view()
        for act in self.actions:
            act(micro, places)
        return [places[place] for place in self.made]


class SegmentEnds:
    """What becomes of the pieces that a segment makes, each known by its position among them.

    keeps: those that later segments read, as (piece, position). results: of the loss or output. frames: by edge that
    goes out, each piece's position and the part of it that travels, None for all. gradients: by edge, for each gradient
    that comes back over it, the position, the whole shape, and the part; None where that is all. count: how many
    pieces it makes. reads: the pieces that come from elsewhere.
    """

    def __init__(self, program: Program, segment: Segment) -> None:
        made = list_made(segment)
        position = {piece: i for i, piece in enumerate(made)}
        self.count, self.reads = len(made), list_sources(segment.steps) - set(made)
        self.keeps = [(piece, position[piece]) for piece in segment.keeps]
        self.results = [(piece, position[piece]) for piece in program.results if piece in position]
        self.frames = [cut_frames(program, edge, position) for edge in segment.sends]
        self.gradients = [
            (edge.edge, [(position[edge.pieces[i]], *_padding(program, edge, i)) for i in with_gradient(program, edge)])
            for edge in segment.sends
        ]


def _padding(program: Program, edge: TransferEdge, i: int) -> tuple[tuple[int, ...], Slices]:
    outer = program.pieces[edge.pieces[i]].box
    return sizes(outer), cut_box(edge.boxes[i], outer)


def list_made(segment: Segment) -> list[int]:
    """Return the pieces that a segment makes, in order."""
    return [piece for step in segment.steps for piece in step.makes]


def list_sources(steps: Iterable[Step]) -> set[int]:
    """Return the pieces that steps read."""
    return {source for step in steps for operand in step.operands for source in operand.sources}


def cut_box(box: Box, outer: Box) -> Slices:
    """Return the index that cuts a box out of a piece; None where it is all of the piece."""
    return None if box == outer else slices(relative(box, outer))


def cut_frames(program: Program, edge: TransferEdge, key: dict[int, int] | None = None) -> list[tuple[int, Slices]]:
    """Return each piece of an edge, under its `key` if there are keys, with the part of it that travels."""
    pieces: dict[int, PieceInfo] = program.pieces
    pairs = zip(edge.pieces, edge.boxes, strict=True)
    return [(piece if key is None else key[piece], cut_box(box, pieces[piece].box)) for piece, box in pairs]


@dataclass(frozen=True)
class SegmentRoutes:
    """The messages of one segment.

    receives, sends: forward, what it waits for and what it makes. gradients, returns: backward, the same.
    """

    receives: list[Route]
    sends: list[Route]
    gradients: list[Route]
    returns: list[Route]


def list_routes(remote: ReplicaPeers, program: Program, position: int) -> SegmentRoutes:
    """Return the messages of the segment at a position."""
    segment = program.segments[position]
    earliest = [program.arrivals[number] for number, first in program.returns.items() if first == position]
    with_gradients = [(edge, with_gradient(program, edge)) for edge in (*earliest, *segment.sends)]
    back = [remote.route("backward", edge, positions) for edge, positions in with_gradients if positions]
    count = sum(bool(positions) for _, positions in with_gradients[: len(earliest)])
    return SegmentRoutes(
        receives=[remote.route("forward", program.arrivals[number]) for number in segment.receives],
        sends=[remote.route("forward", edge) for edge in segment.sends],
        gradients=back[count:],
        returns=back[:count],
    )


def with_gradient(program: Program, edge: TransferEdge) -> list[int]:
    """Return the positions of the pieces of an edge whose gradient comes back."""
    return [i for i, piece in enumerate(edge.pieces) if program.pieces[piece].gradient]


def take_frames(frames: Sequence[tuple[int, Slices]], held: Any) -> list[Tensor]:
    """Return the tensors that travel, cut out of the pieces that are held."""
    return [held[key].detach() if where is None else held[key].detach()[where] for key, where in frames]


# Where gradients are added up ----------------------------------------------------------------------------------------


@dataclass
class Readers:
    """Readers of a piece. whole: of all of it, or of slices of that. others: of parts, and from outside the segment.

    opaque: some run code of the user, which is given a tensor of its own.
    """

    whole: int = 0
    others: int = 0
    opaque: bool = False

    @property
    def may_share_a_node(self) -> bool:
        """Whether all may read one tensor: a sum of two has one order, and so has one without others."""
        return not self.opaque and (not self.others or self.whole + self.others <= 2)


class PieceReaders:
    """The readers of each piece in one segment."""

    def __init__(self, program: Program, segment: Segment) -> None:
        self._readers: dict[int, Readers] = defaultdict(Readers)
        for step in segment.steps:
            for operand in step.operands:
                self._count(program, step.op, operand)
        outside = {piece for edge in segment.sends for piece in edge.pieces}
        for piece in outside.union(segment.keeps, program.results):
            self._readers[piece].others += 1

    def of(self, piece: int) -> Readers:
        """Return the readers of a piece."""
        return self._readers[piece]

    def _count(self, program: Program, op: str, operand: BoxOperand) -> None:
        is_whole = op != "" and operand.argument != STATE and is_read_whole(program, operand, operand.box)
        for source in operand.sources:
            readers = self._readers[source]
            readers.whole += is_whole
            readers.others += not is_whole
            readers.opaque |= op != "" and program.ops[op].target in DRAWS_AT_WILL


def is_read_whole(program: Program, operand: BoxOperand, box: Box | None) -> bool:
    """Whether a box is one piece, or a slice of one in the shape of its dimensions."""
    if box is None or len(operand.sources) != 1:
        return False
    piece = program.pieces[operand.sources[0]].box
    return box == piece or program.tensors[operand.tensor].dim_slices(box, piece) is not None
