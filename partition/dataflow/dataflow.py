"""`Dataflow`: what each machine computes, holds, sends and receives in a step of a cut model.

An instruction's stage is the number of exchanges before it, counted wave by wave (see waves.py). The instructions of
one machine and stage, a segment, run without waiting for any other machine, and all that they send to one machine is
one message, an edge.
"""

from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from ..ir.box import Box, volume
from ..ir.graph import Graph
from ..operators.routed_rows import DISPATCH, ROUTED, count_packed_bytes
from .cut import Cut

RUN, SUM = "run", "sum"


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A box of a tensor on a machine.

    maker: the instruction that computes it; -1 for state and for copies of what other machines have.
    """

    index: int
    tensor: str
    box: Box
    machine: int
    maker: int
    origin: int = -1  # the piece of another machine that this one is a copy of


class Read(msgspec.Struct, frozen=True, gc=False):
    """An operand of an instruction.

    box: what it needs of the tensor, None for nothing. sources: the local pieces that hold this box.
    """

    argument: str
    tensor: str
    box: Box | None
    sources: tuple[int, ...] = ()


class Instruction(msgspec.Struct, frozen=True, gc=False):
    """One box of an operator (kind "run"), or the addition of partial results (kind "sum"), on one machine."""

    index: int
    op: str
    kind: str
    box: Box
    machine: int
    reads: tuple[Read, ...]
    makes: tuple[int, ...]
    stage: int = 0


class Edge(msgspec.Struct, frozen=True, gc=False):
    """All pieces that one segment sends to one machine, as one message.

    pairs: (piece at the source, its copy at the target). bytes: that it sends forward; of tensors whose zeros do not
    travel, those that are expected. gradient_bytes: of the gradients that go back.
    """

    index: int
    source: int
    stage: int
    target: int
    pairs: tuple[tuple[int, int], ...]
    bytes: int
    gradient_bytes: int


@dataclass
class Dataflow:
    """What every machine does in a step of a cut model.

    model: the graph that was cut. graph: the graph that runs, in which an operator that is cut along a non-additive
    reduction is two. shared_edges: copies of state that are sent before a step and whose gradients are folded back
    after it. results: the pieces of the graph's results.
    """

    model: Graph
    graph: Graph
    cut: Cut
    pieces: list[Piece] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    shared_edges: list[Edge] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def piece_bytes(self, index: int) -> int:
        """Bytes of a piece."""
        return self._piece_bytes[index]

    @cached_property
    def _piece_bytes(self) -> list[int]:  # asked for when all pieces are there
        tensors = self.graph.tensors
        return [volume(piece.box) * tensors[piece.tensor].element_bytes for piece in self.pieces]

    def sent_bytes(self, index: int) -> int:
        """Bytes of a piece on its way to another machine."""
        return self._sent_bytes[index]

    @cached_property
    def _sent_bytes(self) -> list[int]:
        sizes, tensors = list(self._piece_bytes), self.graph.tensors
        for piece in self.pieces:
            info = tensors[piece.tensor]
            if info.density < 1:
                row = piece.box[-1][1] - piece.box[-1][0]
                sizes[piece.index] = count_packed_bytes(volume(piece.box), row, info.element_bytes, info.density)
        return sizes

    @cached_property
    def depends_on_data(self) -> bool:
        """Whether what is sent follows from data: tensors travel without their rows of zeros."""
        pieces, tensors = self.pieces, self.graph.tensors
        return any(tensors[pieces[copy].tensor].density < 1 for edge in self.edges for _, copy in edge.pairs)

    @cached_property
    def passing(self) -> frozenset[int]:
        """The instructions that dispatch or combine rows that do not travel: they pass on what they read."""
        routed = {op.name: op.target for op in self.graph.ops if op.target in ROUTED}
        sent = {source for edge in self.edges for source, _ in edge.pairs} if routed else set()
        return frozenset(
            i.index
            for i in self.instructions
            if i.op in routed
            and not (
                sent.intersection(i.makes)
                if routed[i.op] == DISPATCH
                else any(self.pieces[source].maker < 0 for source in i.reads[0].sources)
            )
        )

    @property
    def bytes_forward(self) -> int:
        """Bytes over the network in a forward pass, parameters that several machines use included."""
        return sum(edge.bytes for edge in (*self.edges, *self.shared_edges))
