"""`Program`: what one machine runs, as plain data - segments of local work between exchanges.

It holds the operators, pieces and edges of this machine only, so that a worker needs neither the model's code nor its
graph. Pieces are numbered over the whole cut, and an edge has the same number on both sides.
"""

import hashlib
from collections import defaultdict

import msgspec

from ...partition.ir.box import Box, volume
from ...partition.dataflow.pipeline_depth import pipeline_depths, running_ahead
from ...errors import BadInput
from ...partition.dataflow.dataflow import SUM, Edge, Flow, Instruction
from ...partition.operators.generator_state import origins
from ...partition.ir.graph import Graph, Op, TensorInfo
from ...partition.ir.random_ops import noise_name
from ...partition.capture.axis_inference import OPAQUE


class PieceInfo(msgspec.Struct, frozen=True):
    """A box of a tensor that is on this machine at some time."""

    tensor: str
    box: Box
    gradient: bool


class State(msgspec.Struct, frozen=True):
    """A piece of a parameter, frozen parameter, buffer or constant that this machine owns.

    offset: where a parameter's piece begins in the machine's flat buffer, in elements; -1 for what is not trained.
    """

    piece: int
    kind: str
    offset: int


class Link(msgspec.Struct, frozen=True):
    """This machine's side of an edge: its pieces, one frame each, and the boxes of them that travel."""

    edge: int
    peer: int
    pieces: tuple[int, ...]
    boxes: tuple[Box, ...]


class Operand(msgspec.Struct, frozen=True):
    """What a step reads: a box of a tensor, found in `sources` (pieces). Batch tensors and noise have no sources."""

    argument: str
    tensor: str
    box: Box | None
    sources: tuple[int, ...]


class Step(msgspec.Struct, frozen=True):
    """A box of an operator, or the addition of partial results into a box (op empty)."""

    op: str
    box: Box
    operands: tuple[Operand, ...]
    makes: tuple[int, ...]


class Segment(msgspec.Struct, frozen=True):
    """Steps that run without waiting for anybody.

    receives: edges that must have arrived. sends: what goes out afterwards. keeps: pieces that later segments here
    read. recompute: what it makes is not held for backward but made once more then (Chen et al., "Training Deep Nets
    with Sublinear Memory Cost", 2016).
    """

    stage: int
    steps: tuple[Step, ...]
    receives: tuple[int, ...]
    sends: tuple[Link, ...]
    keeps: tuple[int, ...]
    recompute: bool = False


class Noise(msgspec.Struct, frozen=True):
    """A dropout mask of probability p, or the state of the generator from which operator `op` draws.

    All is drawn whole and in the model's order, as torch would. after: the tensor that holds the generator's state
    where this run of draws begins, which a block by hand left; empty for the seed's.
    """

    tensor: str
    p: float
    op: str = ""
    after: str = ""


class Program(msgspec.Struct, frozen=True):
    """All that one machine of a replica does in a step.

    elements: length of the flat parameter buffer. gives, takes: state that other machines use too, sent before a step;
    its gradient comes back after it. arrivals: edges that come in. returns: edge -> position of the earliest segment
    that reads it, after whose backward its gradient goes back. results: pieces of the loss, or of the output, made
    here.
    one_at_a_time: several segments touch a buffer that the step overwrites, so that micro-batches must not mix.
    depth: pipeline stages from this machine to the end of the model, its own counted in. Machines that wait for each
    other in forward make up one stage. plan: a digest of model and cut, the same for all programs of one cut.
    tells: machines that would run ahead of this one, which has the results, and are told how far it is. told_by: the
    machine that tells this one so; -1 for none.
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
    states: tuple[State, ...]
    gives: tuple[Link, ...]
    takes: tuple[Link, ...]
    noises: tuple[Noise, ...]
    segments: tuple[Segment, ...]
    arrivals: dict[int, Link]
    returns: dict[int, int]
    results: tuple[int, ...]
    one_at_a_time: bool
    depth: int = 1
    plan: str = ""
    tells: tuple[int, ...] = ()
    told_by: int = -1


def programs(flow: Flow, *, training: bool) -> list[Program]:
    """The program of every machine of a cut. training: gradients are wanted."""
    depths, plan = pipeline_depths(flow), _digest(flow)
    ahead = running_ahead(flow, training=training)
    end = next((flow.pieces[piece].machine for piece in flow.results), -1)
    return [
        msgspec.structs.replace(
            _program(flow, machine, training),
            depth=depths[machine],
            plan=plan,
            tells=tuple(ahead) if machine == end else (),
            told_by=end if machine in ahead else -1,
        )
        for machine in range(flow.cut.machines)
    ]


def _digest(flow: Flow) -> str:
    cut = flow.cut
    whole = (flow.model.digest, cut.machines, cut.boxes, cut.folds, cut.owners, sorted(cut.recomputed))
    return hashlib.sha256(msgspec.msgpack.encode(whole)).hexdigest()[:16]


def _program(flow: Flow, machine: int, training: bool) -> Program:
    graph = flow.graph
    mine = [i for i in flow.instructions if i.machine == machine]
    pieces = {
        p.index: PieceInfo(p.tensor, p.box, training and graph.tensors[p.tensor].gradient)
        for p in flow.pieces
        if p.machine == machine
    }
    states = _states(flow, machine)
    noises = _noises(graph, mine)
    needed = {i.op for i in mine if i.kind != SUM} | {n.op for n in noises}
    names = {p.tensor for p in pieces.values()} | {n.tensor for n in noises}
    names |= {name for op in graph.ops if op.name in needed for name in op.inputs}
    segments = _segments(flow, machine, mine)
    return Program(
        machine=machine,
        machines=flow.cut.machines,
        batch=next((t.shape[0] for t in graph.tensors.values() if t.kind == "input" and t.shape), 1),
        dtype=_one_dtype(graph),
        elements=sum(volume(pieces[s.piece].box) for s in states if s.offset >= 0),
        training=training,
        tensors={name: info for name, info in graph.tensors.items() if name in names},
        ops={op.name: op for op in graph.ops if op.name in needed},
        pieces=pieces,
        states=states,
        gives=tuple(_outgoing(flow, e) for e in flow.shares if e.source == machine),
        takes=tuple(_incoming(flow, e) for e in flow.shares if e.target == machine),
        noises=noises,
        segments=segments,
        arrivals={e.index: _incoming(flow, e) for e in flow.edges if e.target == machine},
        returns=_returns(segments),
        results=tuple(i for i in flow.results if flow.pieces[i].machine == machine),
        one_at_a_time=_mixing(graph, mine),
    )


def _mixing(graph: Graph, mine: list[Instruction]) -> bool:
    """Whether several segments touch a buffer that the step overwrites."""
    stage = {i.op: i.stage for i in mine}
    return any(len({stage[op.name] for op in ops if op.name in stage}) > 1 for ops in graph.overwritten.values())


def _one_dtype(graph: Graph) -> str:
    """The dtype of the flat parameter buffer."""
    dtypes = sorted({info.dtype for info in graph.parameters})
    if len(dtypes) > 1:
        raise BadInput(
            "E342", f"the parameters have several dtypes: {', '.join(dtypes)}", fix="make them one, e.g. model.float()"
        )
    return dtypes[0] if dtypes else "float32"


def _states(flow: Flow, machine: int) -> tuple[State, ...]:
    """State owned here, in the model's order; trained pieces lie one behind the other."""
    states, offset = [], 0
    for piece in flow.pieces:
        if piece.maker >= 0 or piece.origin >= 0 or piece.machine != machine:
            continue
        kind = flow.graph.tensors[piece.tensor].kind
        states.append(State(piece.index, kind, offset if kind == "parameter" else -1))
        offset += volume(piece.box) if kind == "parameter" else 0
    return tuple(states)


def _noises(graph: Graph, mine: list[Instruction]) -> tuple[Noise, ...]:
    """Of every run of draws those up to the last that this machine needs: the generator must pass them all."""
    needed = {read.tensor for i in mine for read in i.reads if graph.tensors[read.tensor].kind == "noise"}
    after, ops = origins(graph), {noise_name(op.name): op for op in graph.ops}
    runs: dict[str, list[Noise]] = defaultdict(list)
    last = dict.fromkeys(after.values(), 0)
    for name, origin in after.items():
        runs[origin].append(_noise(ops[name], name, origin))
        last[origin] = len(runs[origin]) if name in needed else last[origin]
    return tuple(noise for origin, run in runs.items() for noise in run[: last[origin]])


def _noise(op: Op, name: str, after: str) -> Noise:
    if op.row == OPAQUE:
        return Noise(name, 0.0, op.name, after)
    return Noise(name, op.arguments["p"] if "p" in op.arguments else op.arguments["dropout_p"], after=after)


def _segments(flow: Flow, machine: int, mine: list[Instruction]) -> tuple[Segment, ...]:
    by_stage: dict[int, list[Instruction]] = defaultdict(list)
    for instruction in mine:
        by_stage[instruction.stage].append(instruction)
    edge_of = {copy: e.index for e in flow.edges if e.target == machine for _, copy in e.pairs}
    segments = []
    for stage, instructions in sorted(by_stage.items()):
        made = {piece for i in instructions for piece in i.makes}
        later = {s for i in mine if i.stage > stage for read in i.reads for s in read.sources}
        edges = {edge_of[s] for i in instructions for read in i.reads for s in read.sources if s in edge_of}
        sends = [_outgoing(flow, e) for e in flow.edges if e.source == machine and e.stage == stage]
        segments.append(
            Segment(
                stage,
                tuple(_step(i) for i in instructions),
                tuple(sorted(edges)),
                tuple(sends),
                tuple(sorted(made & later)),
                (machine, stage) in flow.cut.recomputed,
            )
        )
    return tuple(segments)


def _step(instruction: Instruction) -> Step:
    operands = tuple(Operand(r.argument, r.tensor, r.box, r.sources) for r in instruction.reads)
    return Step("" if instruction.kind == SUM else instruction.op, instruction.box, operands, instruction.makes)


def _outgoing(flow: Flow, edge: Edge) -> Link:
    return _link(flow, edge, edge.target, [source for source, _ in edge.pairs])


def _incoming(flow: Flow, edge: Edge) -> Link:
    return _link(flow, edge, edge.source, [copy for _, copy in edge.pairs])


def _link(flow: Flow, edge: Edge, peer: int, pieces: list[int]) -> Link:
    return Link(edge.index, peer, tuple(pieces), tuple(flow.pieces[copy].box for _, copy in edge.pairs))


def _returns(segments: tuple[Segment, ...]) -> dict[int, int]:
    first: dict[int, int] = {}
    for position, segment in enumerate(segments):
        for edge in segment.receives:
            first.setdefault(edge, position)
    return first
