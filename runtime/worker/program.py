"""`Program`: what one machine runs, as plain data: segments of local work, and the exchanges between them.

It holds the operators, pieces and edges of this machine only, so that a worker needs neither the model's code nor its
graph. Pieces are numbered over the whole cut, and an edge has the same number on both machines.
"""

import hashlib
from collections import defaultdict
from collections.abc import Container, Mapping

import msgspec
import torch

from ...partition.dataflow.dataflow import SUM, Dataflow, Edge, Instruction
from ...partition.dataflow.deferred_gradients import DeferredGradients, SegmentKey, find_deferred
from ...partition.dataflow.pipeline_depth import find_repeated_overwriters, needs_backpressure, pipeline_depths
from ...partition.ir.box import Box, volume
from ...partition.ir.graph import OPAQUE, Graph, Op, TensorInfo
from ...partition.ir.output_layout import OutputLayout
from ...partition.ir.random_ops import random_tensor_name
from ...partition.ir.sample_rows import has_rows_of_samples
from ...partition.operators.generator_state import find_generator_origins
from .flat_layout import find_flat_dtype, sort_for_flat_buffer


class PieceInfo(msgspec.Struct, frozen=True):
    """A box of a tensor that is on this machine at some time. gradient: whether a gradient flows to it."""

    tensor: str
    box: Box
    gradient: bool


class StatePiece(msgspec.Struct, frozen=True):
    """A piece of state that this machine owns: of a parameter, frozen parameter, buffer or constant.

    offset: where a parameter's piece begins in the machine's flat buffer, in elements; -1 for what is not trained.
    """

    piece: int
    kind: str
    offset: int


class TransferEdge(msgspec.Struct, frozen=True):
    """This machine's side of an edge of the dataflow between two machines.

    edge: its number. peer: the other machine. pieces: those that travel, a tensor each. boxes: the part of each.
    """

    edge: int
    peer: int
    pieces: tuple[int, ...]
    boxes: tuple[Box, ...]


class BoxOperand(msgspec.Struct, frozen=True):
    """What a step reads: a box of a tensor, found in the pieces `sources`. Batch tensors and masks have none."""

    argument: str
    tensor: str
    box: Box | None
    sources: tuple[int, ...]


class Step(msgspec.Struct, frozen=True):
    """Computes a box of an operator's output, or, with an empty op, adds partial results of a box.

    passes: it gives what it reads first, as it is (see `Dataflow.passing`).
    """

    op: str
    box: Box
    operands: tuple[BoxOperand, ...]
    makes: tuple[int, ...]
    passes: bool = False


class Segment(msgspec.Struct, frozen=True):
    """Steps that run without waiting for another machine.

    receives: edges that must have arrived. sends: edges over which pieces go out afterwards. keeps: pieces that later
    segments of this machine read. recompute: its activations are not kept for backward but computed again then
    (activation checkpointing: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
    deferred: positions of the steps whose parameters get their gradients later, after backward of the segment at
    position `after` (see `Cut.deferred`).
    """

    stage: int
    steps: tuple[Step, ...]
    receives: tuple[int, ...]
    sends: tuple[TransferEdge, ...]
    keeps: tuple[int, ...]
    recompute: bool = False
    deferred: tuple[int, ...] = ()
    after: int = -1


class RandomDraw(msgspec.Struct, frozen=True):
    """A dropout mask of probability p, or the state of the generator from which operator `op` draws.

    All is drawn whole and in the model's order, as torch would. after: the tensor that holds the generator's state
    where this run of draws begins, which a leaf module left; empty for the seed's.
    """

    tensor: str
    p: float
    op: str = ""
    after: str = ""


class Program(msgspec.Struct, frozen=True):
    """All that one machine of a replica does in a step.

    elements: length of the flat parameter buffer. shared_out: state of this machine that others use, too, sent to them
    before a step. shared_in: such state of others, received from its owners. Its gradients go back to the owner after
    the step. arrivals: edges that come in, by number. returns: edge -> position of the earliest segment that reads it,
    after whose backward its gradient goes back. results: pieces of the loss, or of what is read of the output, that
    this machine computes. output: how these are nested; None where there is one tensor.
    samples: by name, the shape that one sample of each input and target has, whichever machine reads it.
    compares_samples: whether it is known that not each row of the output is computed from one sample alone, see
    `ir.sample_rows`.
    one_at_a_time: several segments touch a buffer that the step overwrites, so that micro-batches must not mix.
    depth: pipeline stages from this machine to the end of the model, its own counted in. Machines that wait for each
    other in forward make up one stage. plan: a digest of model and cut, the same for all programs of one cut.
    done_listeners: machines that would run ahead of this one, which has the results, and which it tells when a step or
    micro-batch is done. done_source: the machine that tells this one so; -1 for none.
    """

    machine: int
    machines: int
    batch: int
    dtype: str
    elements: int
    training: bool
    tensors: dict[str, TensorInfo]
    ops: dict[str, Op]
    pieces: dict[int, PieceInfo]
    states: tuple[StatePiece, ...]
    shared_out: tuple[TransferEdge, ...]
    shared_in: tuple[TransferEdge, ...]
    random_draws: tuple[RandomDraw, ...]
    segments: tuple[Segment, ...]
    arrivals: dict[int, TransferEdge]
    returns: dict[int, int]
    results: tuple[int, ...]
    samples: dict[str, tuple[int, ...]]
    one_at_a_time: bool
    depth: int = 1
    plan: str = ""
    done_listeners: tuple[int, ...] = ()
    done_source: int = -1
    output: OutputLayout | None = None
    compares_samples: bool = False


def programs(dataflow: Dataflow, *, training: bool) -> list[Program]:
    """The program of every machine of a cut. training: whether gradients are wanted."""
    depths, plan = pipeline_depths(dataflow), _digest(dataflow)
    deferred = find_deferred(dataflow) if training else {}
    ahead, alone = needs_backpressure(dataflow, training=training), find_repeated_overwriters(dataflow)
    compares_samples = not training and has_rows_of_samples(dataflow.model) is False
    end = next((dataflow.pieces[piece].machine for piece in dataflow.results), -1)
    return [
        msgspec.structs.replace(
            _program(dataflow, machine, training, alone, deferred),
            depth=depths[machine],
            plan=plan,
            done_listeners=tuple(ahead) if machine == end else (),
            done_source=end if machine in ahead else -1,
            compares_samples=compares_samples,
        )
        for machine in range(dataflow.cut.machines)
    ]


def _digest(dataflow: Dataflow) -> str:
    cut = dataflow.cut
    backward = sorted(cut.recomputed), sorted(cut.deferred.items())
    whole = (dataflow.model.digest, cut.machines, cut.boxes, cut.folds, cut.owners, *backward)
    return hashlib.sha256(msgspec.msgpack.encode(whole)).hexdigest()[:16]


def _program(
    dataflow: Dataflow,
    machine: int,
    training: bool,
    alone: Container[int],
    deferred: Mapping[SegmentKey, DeferredGradients],
) -> Program:
    graph = dataflow.graph
    own_instructions = [i for i in dataflow.instructions if i.machine == machine]
    pieces = {
        p.index: PieceInfo(p.tensor, p.box, training and graph.tensors[p.tensor].gradient)
        for p in dataflow.pieces
        if p.machine == machine
    }
    states = _states(dataflow, machine)
    random_draws = _list_random_draws(graph, own_instructions)
    needed = {i.op for i in own_instructions if i.kind != SUM} | {n.op for n in random_draws}
    names = {p.tensor for p in pieces.values()} | {n.tensor for n in random_draws}
    names |= {name for op in graph.ops if op.name in needed for name in op.inputs}
    segments = _segments(dataflow, machine, own_instructions, deferred)
    dtype = find_flat_dtype(getattr(torch, info.dtype) for info in graph.parameters)
    return Program(
        machine=machine,
        machines=dataflow.cut.machines,
        batch=next((t.shape[0] for t in graph.tensors.values() if t.kind == "input" and t.shape), 1),
        dtype=str(dtype).removeprefix("torch."),
        elements=sum(volume(pieces[s.piece].box) for s in states if s.offset >= 0),
        training=training,
        tensors={name: info for name, info in graph.tensors.items() if name in names},
        ops={op.name: op for op in graph.ops if op.name in needed},
        pieces=pieces,
        states=states,
        shared_out=tuple(_outgoing(dataflow, e) for e in dataflow.shared_edges if e.source == machine),
        shared_in=tuple(_incoming(dataflow, e) for e in dataflow.shared_edges if e.target == machine),
        random_draws=random_draws,
        segments=segments,
        arrivals={e.index: _incoming(dataflow, e) for e in dataflow.edges if e.target == machine},
        returns=_returns(segments),
        results=tuple(i for i in dataflow.results if dataflow.pieces[i].machine == machine),
        samples={name: info.shape[1:] for name, info in graph.tensors.items() if info.kind in ("input", "target")},
        one_at_a_time=machine in alone,
        output=graph.output,
    )


def _states(dataflow: Dataflow, machine: int) -> tuple[StatePiece, ...]:
    """State owned here, in the order of the flat buffer; trained pieces lie one behind the other."""
    own = [p for p in dataflow.pieces if p.maker < 0 and p.origin < 0 and p.machine == machine]
    states, offset = [], 0
    for piece in sort_for_flat_buffer(own, lambda piece: volume(piece.box)):
        kind = dataflow.graph.tensors[piece.tensor].kind
        states.append(StatePiece(piece.index, kind, offset if kind == "parameter" else -1))
        offset += volume(piece.box) if kind == "parameter" else 0
    return tuple(states)


def _list_random_draws(graph: Graph, own_instructions: list[Instruction]) -> tuple[RandomDraw, ...]:
    """Of every run of draws those up to the last that this machine needs: the generator must pass them all."""
    needed = {read.tensor for i in own_instructions for read in i.reads if graph.tensors[read.tensor].kind == "random"}
    after, ops = find_generator_origins(graph), {random_tensor_name(op.name): op for op in graph.ops}
    runs: dict[str, list[RandomDraw]] = defaultdict(list)
    last = dict.fromkeys(after.values(), 0)
    for name, origin in after.items():
        runs[origin].append(_noise(ops[name], name, origin))
        last[origin] = len(runs[origin]) if name in needed else last[origin]
    return tuple(draw for origin, run in runs.items() for draw in run[: last[origin]])


def _noise(op: Op, name: str, after: str) -> RandomDraw:
    if op.sharding_rule == OPAQUE:
        return RandomDraw(name, 0.0, op.name, after)
    return RandomDraw(name, op.arguments["p"] if "p" in op.arguments else op.arguments["dropout_p"], after=after)


def _segments(
    dataflow: Dataflow,
    machine: int,
    own_instructions: list[Instruction],
    deferred: Mapping[SegmentKey, DeferredGradients],
) -> tuple[Segment, ...]:
    by_stage: dict[int, list[Instruction]] = defaultdict(list)
    for instruction in own_instructions:
        by_stage[instruction.stage].append(instruction)
    edge_of = {copy: e.index for e in dataflow.edges if e.target == machine for _, copy in e.pairs}
    segments, position = list[Segment](), {stage: n for n, stage in enumerate(sorted(by_stage))}
    for stage, instructions in sorted(by_stage.items()):
        outputs = {piece for i in instructions for piece in i.makes}
        later = {s for i in own_instructions if i.stage > stage for read in i.reads for s in read.sources}
        edges = {edge_of[s] for i in instructions for read in i.reads for s in read.sources if s in edge_of}
        sends = [_outgoing(dataflow, e) for e in dataflow.edges if e.source == machine and e.stage == stage]
        left = deferred.get((machine, stage))
        late = {i.index for i in left.instructions} if left is not None else set()
        segments.append(
            Segment(
                stage,
                tuple(_step(i, passes=i.index in dataflow.passing) for i in instructions),
                tuple(sorted(edges)),
                tuple(sends),
                tuple(sorted(outputs & later)),
                (machine, stage) in dataflow.cut.recomputed,
                tuple(n for n, i in enumerate(instructions) if i.index in late),
                -1 if left is None else position[left.after],
            )
        )
    return tuple(segments)


def _step(instruction: Instruction, *, passes: bool) -> Step:
    operands = tuple(BoxOperand(r.argument, r.tensor, r.box, r.sources) for r in instruction.reads)
    return Step("" if instruction.kind == SUM else instruction.op, instruction.box, operands, instruction.makes, passes)


def _outgoing(dataflow: Dataflow, edge: Edge) -> TransferEdge:
    return _link(dataflow, edge, edge.target, [source for source, _ in edge.pairs])


def _incoming(dataflow: Dataflow, edge: Edge) -> TransferEdge:
    return _link(dataflow, edge, edge.source, [copy for _, copy in edge.pairs])


def _link(dataflow: Dataflow, edge: Edge, peer: int, pieces: list[int]) -> TransferEdge:
    return TransferEdge(edge.index, peer, tuple(pieces), tuple(dataflow.pieces[copy].box for _, copy in edge.pairs))


def _returns(segments: tuple[Segment, ...]) -> dict[int, int]:
    first: dict[int, int] = {}
    for position, segment in enumerate(segments):
        for edge in segment.receives:
            first.setdefault(edge, position)
    return first
