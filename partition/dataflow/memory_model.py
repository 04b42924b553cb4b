"""The memory model: what a machine holds during a step, and which activations are recomputed where that is too much.

A machine holds, for the whole step, its state: a parameter, its gradient and a copy on its way to other machines, in
the dtype of all parameters' masters (runtime/worker/flat_layout.py), and a parameter of fewer bits with its gradient
beside them. Where such copies are kept until then, the gradient of one parameter that is about to be added comes on
top of them. For each micro-batch in flight it holds the batch, what it received, copies of what it sent, what later
segments read, and the activations of each segment with their gradients: outputs of operators, and operands that are put
together from several pieces. A segment that is recomputed holds its activations for one micro-batch at a time (Chen et
al., "Training deep nets with sublinear memory cost", 2016, section 3, with segments as the parts).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..cluster.cost_model import class_of, is_cast
from ..cluster.machines import Cluster, HeldBytes
from ..ir.box import volume
from ..ir.graph import STATE_KINDS, Graph, Op, TensorInfo
from ..operators.leaf_module import LEAF_MODULE
from ..operators.routed_rows import COMBINE
from ..operators.sharding.cost_class import VIEW
from .cut import one_machine_cut
from .dataflow import RUN, Dataflow
from .lowering import lower_cut

MIN_MASTER_BYTES = 4  # an element of float32
KEPT_BYTES = 128 << 20  # of gradients on their way at least, while the next are computed (ps/client/replay_limit.py)


@dataclass
class MemoryUse:
    """Bytes of one machine, whatever it recomputes.

    steady: state. copies: of it, copies of gradients on their way. added: the largest gradient that is added to that of
    a parameter. held: what is there for every micro-batch in flight. activation_bytes: by stage, activations and
    gradients, for every micro-batch in flight, or for one where the stage is recomputed. fixed: stages that cannot run
    twice.
    """

    steady: int = 0
    copies: int = 0
    added: int = 0
    held: int = 0
    activation_bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    fixed: set[int] = field(default_factory=set)

    def bytes(self, in_flight: int, recomputed: set[int]) -> HeldBytes:
        kept = sum(size for stage, size in self.activation_bytes.items() if stage not in recomputed)
        largest = max((self.activation_bytes[stage] for stage in recomputed), default=0)
        working = _added_bytes(self.added, self.copies) + in_flight * kept + largest
        return HeldBytes(self.steady + in_flight * self.held, working)


def _added_bytes(added: int, copies: int) -> int:
    """Bytes that a gradient takes that is about to be added: none where copies were that are not kept until then."""
    return max(0, added - max(0, copies - KEPT_BYTES))


def _master_bytes(graph: Graph) -> int:
    return max((MIN_MASTER_BYTES, *(info.element_bytes for info in graph.parameters)))


def state_bytes(graph: Graph) -> dict[str, int]:
    """Return the bytes that a machine holds for each element that it owns of a parameter or buffer, by its name."""
    master = _master_bytes(graph)
    held = dict[str, int]()
    for name, info in graph.tensors.items():
        if info.kind == "parameter":
            copies = 2 if info.element_bytes < master else 0
            held[name] = 3 * master + copies * info.element_bytes
        elif info.kind in STATE_KINDS:
            held[name] = info.element_bytes
    return held


def is_view(op: Op, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether what an operator makes lies in the memory of what it reads."""
    return op.target == COMBINE or (class_of(op) == VIEW and not is_cast(op, tensors))


def peak_memory(
    dataflow: Dataflow, in_flight: Sequence[int] = (), uses: Sequence[MemoryUse] | None = None
) -> list[HeldBytes]:
    """Bytes that each machine needs.

    in_flight: so many micro-batches each has at a time, one by default. uses: of this dataflow, if they are known.
    """
    uses = measure_memory_use(dataflow) if uses is None else uses
    machines = zip(uses, _recomputed_stages(dataflow), _list_in_flight(dataflow, in_flight), strict=True)
    return [use.bytes(count, recomputed) for use, recomputed, count in machines]


def least_memory(dataflow: Dataflow, in_flight: Sequence[int] = ()) -> list[HeldBytes]:
    """Bytes that each machine needs at least: those with every segment recomputed that can be."""
    uses = zip(measure_memory_use(dataflow), _list_in_flight(dataflow, in_flight), strict=True)
    return [use.bytes(count, set(use.activation_bytes) - use.fixed) for use, count in uses]


def _list_in_flight(dataflow: Dataflow, in_flight: Sequence[int]) -> Sequence[int]:
    return in_flight or [1] * dataflow.cut.machines


def whole_memory(graph: Graph, *, in_flight: int = 1) -> HeldBytes:
    """Bytes of all tensors of a graph, as a machine would hold them that has the whole model, roughly."""
    state = state_bytes(graph)
    views = {name for op in graph.ops if is_view(op, graph.tensors) for name in op.outputs}
    values = sum(
        volume(info.box) * info.element_bytes * (2 if info.gradient else 1)
        for info in graph.tensors.values()
        if info.name not in state and info.name not in views
    )
    added = max((volume(info.box) * info.element_bytes for info in graph.parameters if info.gradient), default=0)
    added = _added_bytes(added, _master_bytes(graph) * sum(volume(info.box) for info in graph.parameters))
    held = sum(volume(graph.tensors[name].box) * size for name, size in state.items())
    return HeldBytes(held, added + in_flight * values)


def uncut_memory(graph: Graph) -> HeldBytes:
    """Bytes that a machine with the whole model needs at least, with every segment recomputed that can be."""
    (needed,) = least_memory(lower_cut(graph, one_machine_cut(graph)))
    return needed


def recompute_to_fit(
    dataflow: Dataflow, cluster: Cluster, in_flight: Sequence[int] = (), uses: Sequence[MemoryUse] | None = None
) -> Dataflow:
    """Recompute as few segments as will do on the machines that have too little memory.

    The segments with the largest activations go first. Where even all of them are not enough, none is recomputed.
    uses: of this dataflow, if they are known.
    """
    recomputed, counts = set[tuple[int, int]](), _list_in_flight(dataflow, in_flight)
    uses = measure_memory_use(dataflow) if uses is None else uses
    for number, (machine, count) in enumerate(zip(uses, counts, strict=True)):
        spec, chosen = cluster.machines[number], set[int]()
        candidates = sorted(
            machine.activation_bytes.keys() - machine.fixed, key=lambda stage: (-machine.activation_bytes[stage], stage)
        )
        while spec.needed_bytes(machine.bytes(count, chosen)) > spec.memory_bytes and candidates:
            chosen.add(candidates.pop(0))
        if spec.needed_bytes(machine.bytes(count, chosen)) <= spec.memory_bytes:
            recomputed |= {(number, stage) for stage in chosen}
    if not recomputed:
        return dataflow
    return replace(dataflow, cut=replace(dataflow.cut, recomputed=frozenset(recomputed)))


def _recomputed_stages(dataflow: Dataflow) -> Sequence[set[int]]:
    stages: list[set[int]] = [set() for _ in range(dataflow.cut.machines)]
    for machine, stage in dataflow.cut.recomputed:
        stages[machine].add(stage)
    return stages


def measure_memory_use(dataflow: Dataflow) -> list[MemoryUse]:
    """Measure what each machine holds, which does not depend on what it recomputes."""
    machines = [MemoryUse() for _ in range(dataflow.cut.machines)]
    tensors = dataflow.graph.tensors
    views = {name for op in dataflow.graph.ops if is_view(op, tensors) for name in op.outputs}
    later, state, master = _read_later(dataflow), state_bytes(dataflow.graph), _master_bytes(dataflow.graph)
    stages = {i.index: i.stage for i in dataflow.instructions}
    for piece in dataflow.pieces:
        info, machine = tensors[piece.tensor], machines[piece.machine]
        size = dataflow.piece_bytes(piece.index)
        if (piece.tensor in views and piece.origin < 0) or piece.maker in dataflow.passing:
            continue
        if piece.tensor in state:
            machine.steady += volume(piece.box) * state[piece.tensor]
            machine.copies += master * volume(piece.box) if info.kind == "parameter" else 0
            machine.added = max(machine.added, size if info.gradient else 0)
        elif piece.maker < 0 or piece.index in later:
            machine.held += (2 if info.gradient else 1) * size
        else:
            machine.activation_bytes[stages[piece.maker]] += (2 if info.gradient else 1) * size
    for (number, stage), size in _assembled_bytes(dataflow).items():
        machines[number].activation_bytes[stage] += size
    _add_sent(dataflow, machines)
    leaf_modules = {op.name for op in dataflow.graph.ops if op.target == LEAF_MODULE}
    for i in dataflow.instructions:
        if i.op in leaf_modules:  # the user's own code, which may remember how often it ran
            machines[i.machine].fixed.add(i.stage)
    batch = sum(volume(t.box) * t.element_bytes for t in tensors.values() if t.kind in ("input", "target"))
    for machine in machines:
        machine.held += batch
    return machines


def _assembled_bytes(dataflow: Dataflow) -> dict[tuple[int, int], int]:
    """Bytes of the operands that each segment, by machine and stage, puts together, with their gradients.

    All readers of a segment share what they read of a tensor (runtime/worker/segment_compiler.py).
    """
    tensors = dataflow.graph.tensors
    assembled = {
        (i.machine, i.stage, read.tensor, read.box)
        for i in dataflow.instructions
        if i.kind == RUN
        for read in i.reads
        if len(read.sources) > 1
    }
    sizes = Counter[tuple[int, int]]()
    for machine, stage, tensor, box in assembled:
        info = tensors[tensor]
        assert box is not None
        sizes[machine, stage] += (2 if info.gradient else 1) * volume(box) * info.element_bytes
    return sizes


def _add_sent(dataflow: Dataflow, machines: Sequence[MemoryUse]) -> None:
    """Add the copies of what each machine sends, forward and back, which last until the receiver is done with them."""
    for edge in dataflow.edges:
        machines[edge.source].held += edge.bytes
        machines[edge.target].held += edge.gradient_bytes
    for edge in dataflow.shared_edges:
        machines[edge.source].steady += edge.bytes
        machines[edge.target].steady += edge.gradient_bytes


def _read_later(dataflow: Dataflow) -> set[int]:
    """Pieces that a later segment of the same machine reads; they are held as what comes from other machines."""
    stages = {i.index: i.stage for i in dataflow.instructions}
    return {
        source
        for i in dataflow.instructions
        for read in i.reads
        for source in read.sources
        if dataflow.pieces[source].maker >= 0 and stages[dataflow.pieces[source].maker] < i.stage
    }
