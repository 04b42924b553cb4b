"""From a cut to what each machine computes, holds, sends and receives: the `Flow`, with exact halos.

Expand: a region of a tensor goes from its owner to each other machine that reads it, once. Fold: partial sums go to the
owner of the sum; those of one machine are added first. Backward is the transpose of both (DistBelief, section 3 and
figure 1).

Segments: an instruction's stage is the number of exchanges before it; the instructions of one machine and stage run
without waiting for anybody, and all that they send to one machine goes as one message, an edge.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from . import reduction_split as joining
from ..ir.box import Box, as_array, cover, fuse, hull, intersect, overlaps, volume
from .cut import Cut, Placed, with_folds
from ..ir.graph import STATE_KINDS, Graph, Op, is_partial, output_box, reads

RUN, SUM = "run", "sum"


@dataclass(frozen=True)
class Piece:
    """A box of a tensor on a machine. maker: the instruction that computes it, -1 for state and what was received."""

    index: int
    tensor: str
    box: Box
    machine: int
    maker: int
    origin: int = -1  # the piece of another machine that this one is a copy of


@dataclass(frozen=True)
class Read:
    """An operand of an instruction: the box that it needs and the pieces at hand that hold it; None reads nothing."""

    argument: str
    tensor: str
    box: Box | None
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Instruction:
    """One box of an operator (kind "run"), or the addition of partial results (kind "sum"), on one machine."""

    index: int
    op: str
    kind: str
    box: Box
    machine: int
    reads: tuple[Read, ...]
    makes: tuple[int, ...]
    stage: int = 0


@dataclass(frozen=True)
class Edge:
    """All pieces that one segment sends to one machine. pairs: (piece at the source, its copy at the target)."""

    index: int
    source: int
    stage: int
    target: int
    pairs: tuple[tuple[int, int], ...]


@dataclass
class Flow:
    """A cut spelled out.

    model: the graph that was cut; graph: the one that runs, where a cut along joined loops is two operators.
    shares: copies of state that are sent before a step, and folded back as gradients after it. results: pieces of the
    graph's results.
    """

    model: Graph
    graph: Graph
    cut: Cut
    pieces: list[Piece] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    shares: list[Edge] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def bytes(self, edge: Edge) -> int:
        """Bytes of an edge, forward."""
        return sum(self.piece_bytes(copy) for _, copy in edge.pairs)

    def piece_bytes(self, index: int) -> int:
        """Bytes of a piece."""
        piece = self.pieces[index]
        return volume(piece.box) * self.graph.tensors[piece.tensor].element_bytes

    @property
    def bytes_forward(self) -> int:
        """Bytes over the network in a forward pass, parameters that several machines use included."""
        return sum(self.bytes(edge) for edge in (*self.edges, *self.shares))


def flow(graph: Graph, cut: Cut) -> Flow:
    """Spell out a cut. The boxes of the cut must cover every operator (see cut.check)."""
    cut = with_folds(graph, cut)
    runs, spelled = joining.spelled(graph, cut)
    out = _Builder(Flow(graph, runs, cut), spelled)
    for op in runs.ops:
        out.add(op)
    out.place_state()
    out.connect()
    return out.finish()


class _Builder:
    def __init__(self, empty: Flow, spelled: Cut) -> None:
        self.flow, self.graph, self.cut = empty, empty.graph, spelled
        self.made: dict[str, list[int]] = defaultdict(list)  # complete pieces of a value, all machines
        self.needs: dict[tuple[str, int], list[Box]] = defaultdict(list)  # boxes of a tensor that a machine reads
        self.copies: dict[tuple[int, Box, int], int] = {}  # (piece, box, machine) -> its copy there

    def piece(self, tensor: str, box: Box, machine: int, maker: int, origin: int = -1) -> int:
        self.flow.pieces.append(Piece(len(self.flow.pieces), tensor, box, machine, maker, origin))
        return len(self.flow.pieces) - 1

    def add(self, op: Op) -> None:
        """One instruction a box, then the additions that complete partial results."""
        partial: list[int] = []
        folded = op.name in self.cut.folds and any(is_partial(op.nest, box) for box, _ in self.cut.boxes[op.name])
        for box, machine in sorted(self.cut.boxes[op.name], key=lambda placed: (placed[1], placed[0])):
            index = len(self.flow.instructions)
            makes = []
            for name in op.outputs:
                made = self.piece(name, output_box(op, self.graph.tensors[name], box), machine, index)
                makes.append(made)
                (partial if folded else self.made[name]).append(made)
            operands = tuple(self._operand(op, i, box, machine) for i in range(len(op.nest.operands)))
            self.flow.instructions.append(Instruction(index, op.name, RUN, box, machine, operands, tuple(makes)))
        if folded:
            for box, machine in self.cut.folds[op.name]:
                self.made[op.outputs[0]].append(self._fold(op, box, machine, partial))

    def _operand(self, op: Op, position: int, box: Box, machine: int) -> Read:
        operand = op.nest.operands[position]
        info = self.graph.tensors[operand.tensor]
        region = reads(op.nest, operand, box, info.extents)
        if region is not None and info.kind in ("value", *STATE_KINDS):
            self.needs[operand.tensor, machine].append(region)
        return Read(operand.argument, operand.tensor, region)

    def _fold(self, op: Op, box: Box, owner: int, partial: Sequence[int]) -> int:
        """Add the parts of `box`: first those of each machine, then, at the owner, one part a machine."""
        parts: dict[int, list[int]] = defaultdict(list)
        for index in partial:
            if intersect(self.flow.pieces[index].box, box) is not None:
                parts[self.flow.pieces[index].machine].append(index)
        arrived = []
        for machine, mine in sorted(parts.items()):
            common = [self._common(index, box) for index in mine]
            if len(mine) > 1 and machine != owner:
                mine = [self._sum(op, hull(common), machine, mine)]
                common = [self.flow.pieces[mine[0]].box]
            if machine != owner:
                mine = [self.copy(mine[0], common[0], owner)]
            arrived += mine
        return self._sum(op, box, owner, arrived)

    def _common(self, index: int, box: Box) -> Box:
        common = intersect(self.flow.pieces[index].box, box)
        assert common is not None
        return common

    def _sum(self, op: Op, box: Box, machine: int, sources: Sequence[int]) -> int:
        index = len(self.flow.instructions)
        made = self.piece(op.outputs[0], box, machine, index)
        read = Read("", op.outputs[0], box, tuple(sources))
        self.flow.instructions.append(Instruction(index, op.name, SUM, box, machine, (read,), (made,)))
        return made

    def copy(self, origin: int, box: Box, machine: int) -> int:
        """The copy of a box of a piece on another machine."""
        key = (origin, box, machine)
        if key not in self.copies:
            self.copies[key] = self.piece(self.flow.pieces[origin].tensor, box, machine, -1, origin)
        return self.copies[key]

    # State -------------------------------------------------------------------------------------------------------

    def place_state(self) -> None:
        """Give every region of state one owner: its only user, else the user that owns least."""
        owned = [0] * self.cut.machines
        owners: dict[str, list[Placed]] = {}
        for info in self.graph.states:
            given = self.cut.owners.get(info.name)
            placed = list(given) if given else self._owners(info.name, owned)
            owners[info.name] = placed
            for box, machine in placed:
                owned[machine] += volume(box)
                self.made[info.name].append(self.piece(info.name, box, machine, -1))
        self.flow.cut = replace(self.flow.cut, owners=owners)

    def _owners(self, name: str, owned: Sequence[int]) -> list[Placed]:
        users = [m for m in range(self.cut.machines) if (name, m) in self.needs]
        if len(users) <= 1:
            return [(self.graph.tensors[name].box, (users or [0])[0])]
        load = list(owned)
        cells: dict[int, list[Box]] = defaultdict(list)
        for box, sharing in _cells(self.graph.tensors[name].box, {m: self.needs[name, m] for m in users}):
            machine = min(sharing or users, key=lambda m: (load[m], m))
            load[machine] += volume(box)
            cells[machine].append(box)
        return [(box, machine) for machine in sorted(cells) for box in fuse(cells[machine])]

    # Connections -------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Copy to each machine what it reads of others' pieces, once, and tell every read where its box is at hand."""
        at_hand: dict[tuple[str, int], list[int]] = defaultdict(list)
        boxes = {tensor: as_array([self.flow.pieces[i].box for i in made]) for tensor, made in self.made.items()}
        for (tensor, machine), regions in self.needs.items():
            wanted = cover(regions)
            made, points = self.made[tensor], overlaps(boxes[tensor], as_array(wanted))
            shared = points.sum(axis=1)
            for row, index in enumerate(made):
                if self.flow.pieces[index].machine == machine:
                    at_hand[tensor, machine].append(index)
                elif shared[row]:
                    box = self.flow.pieces[index].box
                    hits = [intersect(box, wanted[column]) for column in points[row].nonzero()[0].tolist()]
                    at_hand[tensor, machine] += [
                        self.copy(index, box, machine) for box in fuse(hit for hit in hits if hit is not None)
                    ]
        for i, instruction in enumerate(self.flow.instructions):
            if instruction.kind == RUN:
                located = tuple(self._locate(read, at_hand, instruction.machine) for read in instruction.reads)
                self.flow.instructions[i] = replace(instruction, reads=located)

    def _locate(self, read: Read, at_hand: dict[tuple[str, int], list[int]], machine: int) -> Read:
        if read.box is None or (read.tensor, machine) not in at_hand:
            return read
        hits = [i for i in at_hand[read.tensor, machine] if intersect(self.flow.pieces[i].box, read.box) is not None]
        return replace(read, sources=tuple(hits))

    # Stages and edges --------------------------------------------------------------------------------------------

    def finish(self) -> Flow:
        out = self.flow
        stages: list[int] = []
        overwritten = self.graph.overwritten
        touched: dict[tuple[str, int], int] = defaultdict(int)  # stage of the last instruction that touched a buffer
        for i, instruction in enumerate(out.instructions):
            ready = [self._ready(source, stages) for read in instruction.reads for source in read.sources]
            buffers = [(r.tensor, instruction.machine) for r in instruction.reads if r.tensor in overwritten]
            stages.append(max([*ready, *(touched[buffer] for buffer in buffers)], default=0))
            touched.update(dict.fromkeys(buffers, stages[-1]))
            out.instructions[i] = replace(instruction, stage=stages[-1])
        groups: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        shared: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        for piece in out.pieces:
            if piece.origin < 0:
                continue
            source = out.pieces[piece.origin]
            stage = stages[source.maker] if source.maker >= 0 else -1
            (shared if stage < 0 else groups)[source.machine, stage, piece.machine].append((piece.origin, piece.index))
        out.results = [index for name in self.graph.results for index in self.made[name]]
        out.edges = _edges(groups)
        out.shares = _edges(shared)
        return out

    def _ready(self, source: int, stages: list[int]) -> int:
        piece = self.flow.pieces[source]
        if piece.origin >= 0:
            maker = self.flow.pieces[piece.origin].maker
            return stages[maker] + 1 if maker >= 0 else 0
        return stages[piece.maker] if piece.maker >= 0 else 0


def _edges(groups: dict[tuple[int, int, int], list[tuple[int, int]]]) -> list[Edge]:
    ordered = sorted(groups.items(), key=lambda item: (item[0][1], item[0][0], item[0][2]))
    return [Edge(i, source, stage, target, tuple(pairs)) for i, ((source, stage, target), pairs) in enumerate(ordered)]


def _cells(whole_box: Box, needs: dict[int, list[Box]]) -> list[tuple[Box, tuple[int, ...]]]:
    """Regions of equal reader sets, those that nobody reads included."""
    parts: list[tuple[Box, tuple[int, ...]]] = [(whole_box, ())]
    for machine, regions in sorted(needs.items()):
        for region in cover(regions):
            parts = [out for part in parts for out in _mark(part, region, machine)]
    return parts


def _mark(part: tuple[Box, tuple[int, ...]], region: Box, machine: int) -> list[tuple[Box, tuple[int, ...]]]:
    """Split one part into what lies in `region`, read by `machine` too, and the rest."""
    box, readers = part
    common = intersect(box, region)
    if common is None:
        return [part]
    out, rest = [], list(box)
    for axis, ((start, stop), (low, high)) in enumerate(zip(box, common, strict=True)):
        for interval in ((start, low), (high, stop)):
            if interval[0] < interval[1]:
                out.append(((*rest[:axis], interval, *rest[axis + 1 :]), readers))
        rest[axis] = (low, high)
    return [*out, (tuple(rest), (*readers, machine))]
