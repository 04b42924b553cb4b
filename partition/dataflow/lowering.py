"""Lowers a cut to the `Dataflow` of a step, with exact halos.

As in parallel sparse matrix-vector products there are two kinds of exchange (Catalyurek and Aykanat, IEEE TPDS 1999,
section 3; DistBelief, Dean et al., NIPS 2012, section 3 and figure 1, shows both):

expand: a region of a tensor goes from its owner to each other machine that reads it, once.
fold: partial sums go to the owner of the sum; those of one machine are added before they are sent.

The backward pass is the transpose: gradients of what was expanded are folded, and the other way round.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import msgspec

from ..ir.box import Box, cover, find_common, fuse, hull, intersect, volume
from ..ir.graph import STATE_KINDS, Graph, Op, is_partial, output_box, read_box
from . import reduction_split
from .cut import Cut, PlacedBox, assign_fold_owners
from .dataflow import RUN, SUM, Dataflow, Edge, Instruction, Piece, Read
from .waves import find_waves


def lower_cut(graph: Graph, cut: Cut) -> Dataflow:
    """Lower a cut, whose boxes must cover every operator (see `check_cut`)."""
    cut = assign_fold_owners(graph, cut)
    split_graph, split_cut = reduction_split.split_reductions(graph, cut)
    out = _Builder(Dataflow(graph, split_graph, cut), split_cut)
    for op in split_graph.ops:
        out.add(op)
    out.place_state()
    out.connect()
    return out.finish()


class _Builder:
    def __init__(self, empty: Dataflow, cut: Cut) -> None:
        self.dataflow, self.graph, self.cut = empty, empty.graph, cut
        self.complete_pieces: dict[str, list[int]] = defaultdict(list)  # complete pieces of a value, all machines
        self.needs: dict[tuple[str, int], list[Box]] = defaultdict(list)  # boxes of a tensor that a machine reads
        self.copies: dict[tuple[int, Box, int], int] = {}  # (piece, box, machine) -> its copy there
        # Of these, pieces of several boxes of an operator may overlap.
        self.overlapping = {name for op in self.graph.ops if len(op.outputs) > 1 for name in op.outputs}

    def piece(self, tensor: str, box: Box, machine: int, maker: int, origin: int = -1) -> int:
        self.dataflow.pieces.append(Piece(len(self.dataflow.pieces), tensor, box, machine, maker, origin))
        return len(self.dataflow.pieces) - 1

    def add(self, op: Op) -> None:
        """Add one instruction for each box, then the additions that complete partial results (fold)."""
        partial: list[int] = []
        folded = op.name in self.cut.folds and any(is_partial(op.nest, box) for box, _ in self.cut.boxes[op.name])
        for box, machine in sorted(self.cut.boxes[op.name], key=lambda placed_box: (placed_box[1], placed_box[0])):
            index = len(self.dataflow.instructions)
            makes = []
            for name in op.outputs:
                piece = self.piece(name, output_box(op, self.graph.tensors[name], box), machine, index)
                makes.append(piece)
                (partial if folded else self.complete_pieces[name]).append(piece)
            operands = tuple(self._operand(op, i, box, machine) for i in range(len(op.nest.operands)))
            self.dataflow.instructions.append(Instruction(index, op.name, RUN, box, machine, operands, tuple(makes)))
        if folded:
            for box, machine in self.cut.folds[op.name]:
                self.complete_pieces[op.outputs[0]].append(self._fold(op, box, machine, partial))

    def _operand(self, op: Op, position: int, box: Box, machine: int) -> Read:
        operand = op.nest.operands[position]
        info = self.graph.tensors[operand.tensor]
        region = read_box(op.nest, operand, box, info.extents)
        if region is not None and info.kind in ("value", *STATE_KINDS):
            self.needs[operand.tensor, machine].append(region)
        return Read(operand.argument, operand.tensor, region)

    def _fold(self, op: Op, box: Box, owner: int, partial: Sequence[int]) -> int:
        """Add the partial sums of `box`: first those of each machine, then, at the owner, one for each machine."""
        parts: dict[int, list[int]] = defaultdict(list)
        for index in partial:
            if intersect(self.dataflow.pieces[index].box, box) is not None:
                parts[self.dataflow.pieces[index].machine].append(index)
        arrived = []
        for machine, local in sorted(parts.items()):
            common = [self._common(index, box) for index in local]
            if len(local) > 1 and machine != owner:
                local = [self._sum(op, hull(common), machine, local)]
                common = [self.dataflow.pieces[local[0]].box]
            if machine != owner:
                local = [self.copy(local[0], common[0], owner)]
            arrived += local
        return self._sum(op, box, owner, arrived)

    def _common(self, index: int, box: Box) -> Box:
        common = intersect(self.dataflow.pieces[index].box, box)
        assert common is not None
        return common

    def _sum(self, op: Op, box: Box, machine: int, sources: Sequence[int]) -> int:
        index = len(self.dataflow.instructions)
        total = self.piece(op.outputs[0], box, machine, index)
        read = Read("", op.outputs[0], box, tuple(sources))
        self.dataflow.instructions.append(Instruction(index, op.name, SUM, box, machine, (read,), (total,)))
        return total

    def copy(self, origin: int, box: Box, machine: int) -> int:
        """The copy of a box of a piece on another machine, made once."""
        key = (origin, box, machine)
        if key not in self.copies:
            self.copies[key] = self.piece(self.dataflow.pieces[origin].tensor, box, machine, -1, origin)
        return self.copies[key]

    # State -------------------------------------------------------------------------------------------------------

    def place_state(self) -> None:
        """Give every region of state one owner: its only reader, else the reader that owns least so far."""
        owned = [0] * self.cut.machines
        owners: dict[str, list[PlacedBox]] = {}
        for info in self.graph.states:
            owner_boxes = list(self.cut.owners.get(info.name) or self._owners(info.name, owned))
            owners[info.name] = owner_boxes
            for box, machine in owner_boxes:
                owned[machine] += volume(box)
                self.complete_pieces[info.name].append(self.piece(info.name, box, machine, -1))
        self.dataflow.cut = replace(self.dataflow.cut, owners=owners)

    def _owners(self, name: str, owned: Sequence[int]) -> list[PlacedBox]:
        users = [m for m in range(self.cut.machines) if (name, m) in self.needs]
        if len(users) <= 1:
            return [(self.graph.tensors[name].box, (users or [0])[0])]
        load = list(owned)
        cells: dict[int, list[Box]] = defaultdict(list)
        needs = tuple([(m, tuple(self.needs[name, m])) for m in users])
        for box, sharing in _cells(self.graph.tensors[name].box, needs):
            machine = min(sharing or users, key=lambda m: (load[m], m))
            load[machine] += volume(box)
            cells[machine].append(box)
        return [(box, machine) for machine in sorted(cells) for box in fuse(cells[machine])]

    # Connections -------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Expand: copy to each machine what it reads of others' pieces, once, and give every read its local pieces."""
        made, local = dict[str, tuple[Box, ...]](), dict[tuple[str, int], list[int]]()
        own: dict[tuple[str, int], list[int]] = defaultdict(list)  # rows of `complete_pieces`
        for tensor, pieces in self.complete_pieces.items():
            made[tensor] = tuple([self.dataflow.pieces[i].box for i in pieces])
            for row, index in enumerate(pieces):
                own[tensor, self.dataflow.pieces[index].machine].append(row)
        for (tensor, machine), regions in self.needs.items():
            if tensor not in made:
                continue
            rows = own[tensor, machine]
            if self._hold_all(tensor, [made[tensor][row] for row in rows], regions):
                local[tensor, machine] = [self.complete_pieces[tensor][row] for row in rows]
            else:
                hits = find_common(made[tensor], tuple(cover(regions)))
                local[tensor, machine] = self._gather(tensor, machine, rows, hits)
        located = dict[tuple[str, int, Box], tuple[int, ...]]()
        for i, instruction in enumerate(self.dataflow.instructions):
            if instruction.kind == RUN:
                reads = tuple([self._locate(read, local, instruction.machine, located) for read in instruction.reads])
                self.dataflow.instructions[i] = msgspec.structs.replace(instruction, reads=reads)

    def _hold_all(self, tensor: str, boxes: Sequence[Box], regions: Sequence[Box]) -> bool:
        """Whether each region lies in one of these pieces of a tensor, so that no other one has a part of it."""
        return tensor not in self.overlapping and all(_find_holder(boxes, one) is not None for one in set(regions))

    def _gather(self, tensor: str, machine: int, own: Sequence[int], needed: Mapping[int, Sequence[Box]]) -> list[int]:
        """The pieces of a tensor on a machine: its own, and copies of what it needs of the others.

        own: rows of the pieces that it has itself. needed: the boxes of each row that it reads.
        """
        here, made_here = list[int](), set(own)
        for row in sorted(made_here.union(needed)):
            index = self.complete_pieces[tensor][row]
            here += [index] if row in made_here else [self.copy(index, box, machine) for box in needed[row]]
        return here

    def _locate(
        self,
        read: Read,
        local: dict[tuple[str, int], list[int]],
        machine: int,
        located: dict[tuple[str, int, Box], tuple[int, ...]],
    ) -> Read:
        """The read with its local pieces. located: those of boxes that were looked for before."""
        if read.box is None or (read.tensor, machine) not in local:
            return read
        key = read.tensor, machine, read.box
        if key not in located:
            here = local[key[:2]]
            boxes = [self.dataflow.pieces[i].box for i in here]
            holder = None if read.tensor in self.overlapping else _find_holder(boxes, read.box)
            found = find_common(tuple(boxes), (read.box,)) if holder is None else [holder]
            located[key] = tuple([here[row] for row in found])
        return Read(read.argument, read.tensor, read.box, located[key])

    # Stages and edges --------------------------------------------------------------------------------------------

    def finish(self) -> Dataflow:
        out, stages = self.dataflow, self._number_stages()
        pairs = zip(out.instructions, stages, strict=True)
        out.instructions = [msgspec.structs.replace(instruction, stage=stage) for instruction, stage in pairs]
        groups: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        shared: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        for piece in out.pieces:
            if piece.origin < 0:
                continue
            source = out.pieces[piece.origin]
            stage = stages[source.maker] if source.maker >= 0 else -1
            (shared if stage < 0 else groups)[source.machine, stage, piece.machine].append((piece.origin, piece.index))
        out.results = [index for name in self.graph.results for index in self.complete_pieces[name]]
        out.edges = self._edges(groups)
        out.shared_edges = self._edges(shared)
        return out

    def _edges(self, groups: dict[tuple[int, int, int], list[tuple[int, int]]]) -> list[Edge]:
        pieces, tensors, sizes = self.dataflow.pieces, self.graph.tensors, self.dataflow.sent_bytes
        out = list[Edge]()
        for (source, stage, target), pairs in sorted(
            groups.items(), key=lambda item: (item[0][1], item[0][0], item[0][2])
        ):
            sent = [sizes(copy) for _, copy in pairs]
            back = [sizes(copy) for _, copy in pairs if tensors[pieces[copy].tensor].gradient]
            out.append(Edge(len(out), source, stage, target, tuple(pairs), sum(sent), sum(back)))
        return out

    def _number_stages(self) -> list[int]:
        """The stage of each instruction: how many exchanges are before it, those of earlier waves first."""
        waves = find_waves(self.graph, self.cut.wave)
        overwritten = self.graph.overwritten
        reached: list[tuple[int, int]] = []  # (wave, exchanges within it) by instruction
        touched: dict[tuple[str, int], tuple[int, int]] = {}  # that of the last instruction that touched a buffer
        for instruction in self.dataflow.instructions:
            ready = [self._ready(source, reached) for read in instruction.reads for source in read.sources]
            buffers = [(r.tensor, instruction.machine) for r in instruction.reads if r.tensor in overwritten]
            earlier = [touched[buffer] for buffer in buffers if buffer in touched]
            reached.append(max([(waves[instruction.op], 0), *ready, *earlier]))
            touched.update(dict.fromkeys(buffers, reached[-1]))
        number = {key: stage for stage, key in enumerate(sorted(set(reached)))}
        return [number[key] for key in reached]

    def _ready(self, source: int, reached: Sequence[tuple[int, int]]) -> tuple[int, int]:
        piece = self.dataflow.pieces[source]
        if piece.origin < 0:
            return reached[piece.maker] if piece.maker >= 0 else (0, 0)
        maker = self.dataflow.pieces[piece.origin].maker
        return (reached[maker][0], reached[maker][1] + 1) if maker >= 0 else (0, 0)


def _find_holder(boxes: Sequence[Box], inner: Box) -> int | None:
    """Return the place of the first box in which all of another one lies that is not empty; None if there is none."""
    for place, outer in enumerate(boxes):
        if all(a <= c < d <= b for (a, b), (c, d) in zip(outer, inner, strict=True)):
            return place
    return None


@lru_cache(maxsize=100)  # layers are alike; an answer for hundreds of machines is large
def _cells(whole_box: Box, needs: tuple[tuple[int, tuple[Box, ...]], ...]) -> Sequence[tuple[Box, tuple[int, ...]]]:
    """Regions that the same machines read, with these machines; regions that none reads are included.

    needs: the machines in order, each with the boxes that it reads.
    """
    parts: list[tuple[Box, tuple[int, ...]]] = [(whole_box, ())]
    for machine, regions in needs:
        for region in cover(regions):
            parts = [out for part in parts for out in _mark(part, region, machine)]
    return parts


def _mark(part: tuple[Box, tuple[int, ...]], region: Box, machine: int) -> list[tuple[Box, tuple[int, ...]]]:
    """Split a part into what lies in `region`, which `machine` reads too, and the rest."""
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
