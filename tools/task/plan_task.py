"""From the graphs of a task to a placement, a cut and programs: what `plan`, `check`, `eval` and `train` share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from ...errors import BadInput, UsageError
from ...partition.dataflow.carried_cut import carry_cut
from ...partition.dataflow.cut import Cut
from ...partition.dataflow.lowering import lower_cut
from ...partition.ir.graph import Graph
from ...partition.ir.sample_rows import find_comparison, has_rows_of_samples
from ...partition.placement.from_plan import plan_placement
from ...partition.placement.placement_file import Placement
from ...partition.placement.to_cut import cut_from_placement
from ...runtime.worker.program import Program, programs
from ..samples.part_samples import buckets_of, take_first
from ..samples.read_samples import number_samples, read_samples
from .capture_task import CapturedTask, capture_example, capture_unrolled
from .load_task import TaskSpec
from .plan_request import PlanRequest

if TYPE_CHECKING:
    from ...models.task import Data, Task
    from ...partition.cluster.machines import Cluster
    from ..samples.dataset_samples import Samples
    from ..samples.part_samples import PartSamples


def micro_batch_spec(spec: TaskSpec, task: "Task", micro_batches: int) -> TaskSpec:
    """Return the spec whose batch is one of so many micro-batches of the task's batch."""
    batch = spec.batch or task.batch
    if micro_batches < 1 or batch % micro_batches:
        raise UsageError(
            "E209",
            f"{micro_batches} micro-batches of a batch of {batch} samples; it must divide",
            fix=f"--micro-batches {_nearest_divisor(batch, micro_batches)}",
        )
    return msgspec.structs.replace(spec, batch=batch // micro_batches)


def _nearest_divisor(batch: int, near: int) -> int:
    return min((d for d in range(1, batch + 1) if batch % d == 0), key=lambda d: (abs(d - near), d))


@dataclass(frozen=True)
class PlannedTask:
    """A placement, and the task captured in the form that it is of. notes: what the user should know of both forms."""

    placement: Placement
    capture: CapturedTask
    notes: tuple[str, ...]


def plan_task(
    capture: CapturedTask, spec: TaskSpec, request: PlanRequest, cluster: "Cluster | None" = None
) -> PlannedTask:
    """Return the best placement of a captured task, whose batch is a micro-batch.

    cluster: the machines to plan for, by default those of the request. For several machines, a task with recurrent nets
    is captured in their unrolled form as well.
    """
    cluster = request.load_cluster(graph=capture.train) if cluster is None else cluster
    other = capture_unrolled(capture, spec) if len(cluster) > 1 else None
    placement = plan_placement(
        capture.train,
        cluster,
        model=spec.model,
        unrolled=None if other is None or not other.unrolled else other.train,
        seed=request.seed,
        candidates=request.candidates,
        fewer=request.max_machines is not None,
        objective=request.objective,
        pins=request.pins,
        micro_batches=request.micro_batches,
    )
    return complete_placement(placement, capture, other, spec)


def complete_placement(
    placement: Placement, capture: CapturedTask, other: CapturedTask | None, spec: TaskSpec
) -> PlannedTask:
    """Return a placement with what it was made with. other: the task in its unrolled form, if it was captured so."""
    chosen = other if other is not None and placement.unrolled else capture
    own = {"leaf_modules": list(capture.leaf_modules), "autocast": capture.autocast, "frozen": list(spec.frozen)}
    samples = capture.example.samples
    lengths = _list_lengths(samples) if samples is not None else []
    placement = msgspec.structs.replace(placement, unrolled=chosen.unrolled, lengths=lengths, **own)
    notes = [*capture.notes, *(other.notes if other is not None else ())]
    if len(lengths) > 1 and len(placement.machines) > 1:
        shorter = ", ".join(map(str, lengths[:-1]))
        notes.append(f"planned for samples of length {lengths[-1]}; those of {shorter} are cut in the same proportions")
    if placement.micro_batches > 1 and (op := find_comparison(capture.train)) is not None:
        where = op.source or f"module {op.module}"
        parts = f"with {placement.micro_batches} micro-batches each compares its own {placement.batch} alone"
        notes.append(f"{op.name} ({where}) compares the samples of a batch; {parts}")
    return PlannedTask(placement, chosen, tuple(dict.fromkeys(notes)))


def with_placement(placement: Placement | None, spec: TaskSpec) -> TaskSpec:
    """Return the spec with what a placement was made with, if any: leaf modules, autocast, form, frozen names."""
    if placement is None:
        return spec
    frozen = tuple(dict.fromkeys((*spec.frozen, *placement.frozen)))
    own = {"leaf_modules": tuple(placement.leaf_modules), "frozen": frozen}
    return msgspec.structs.replace(spec, autocast=placement.autocast, unrolled=placement.unrolled, **own)


def load_cut(capture: CapturedTask, placement: Placement) -> Cut:
    """Return the cut of a placement file for a captured task; BadInput names the first difference."""
    if placement.batch != capture.batch:
        raise BadInput(
            "E344",
            f"the placement was planned for batches of {placement.batch}, the run has batches of {capture.batch}",
            fix=f"--batch {placement.batch}",
        )
    return cut_from_placement(placement, capture.train)


def compile_programs(capture: CapturedTask, cut: Cut) -> tuple[list[Program], list[Program]]:
    """Return the training programs and the evaluation programs, one of each for every machine."""
    dataflow = lower_cut(capture.train, cut)
    evaluation = carry_cut(capture.train, dataflow.cut, capture.evaluation)
    return programs(dataflow, training=True), programs(lower_cut(capture.evaluation, evaluation), training=False)


@dataclass(frozen=True)
class OtherSizes:
    """Programs for batches of other sizes than the planned one, by size and machine, with the constants of these."""

    programs: "Sequence[Sequence[Program]]" = ()
    evaluations: "Sequence[Sequence[Program]]" = ()
    constants: "Mapping[str, Tensor]" = field(default_factory=dict)
    notes: Sequence[str] = ()


def compile_other_sizes(
    capture: CapturedTask, spec: TaskSpec, cut: Cut, tests: "Samples | PartSamples", *, training: bool = True
) -> OtherSizes:
    """Compile programs for the other lengths of buckets, and for a last batch of evaluation that is short.

    tests: the samples of evaluation. training: whether there are programs to train by, for lengths of training samples.
    BadInput where the parameters would not lie in all programs alike.
    """
    notes, constants, placed = list[str](), dict[str, Tensor](), lower_cut(capture.train, cut).cut

    def capture_size(batch: "Data", what: str, *, training: bool) -> Graph:
        def tell(note: str) -> None:
            if note not in capture.notes:
                notes.append(f"batches of {what}: {note}")

        graph, more = capture_example(capture, spec, batch, training=training, tell=tell)
        constants.update(more)
        return graph

    trained, evaluated = list[list[Program]](), list[list[Program]]()
    if training:
        samples = capture.example.samples
        samples = read_samples(capture.task, "train") if samples is None else samples
        for batch, what in _find_other_sizes(capture, samples):
            graph = capture_size(batch, what, training=True)
            trained.append(_compile_training(capture.train, placed, graph, what))
    graphs = [capture_size(batch, what, training=False) for batch, what in _find_other_sizes(capture, tests)]
    rest = _take_rest(capture, tests)
    if rest is not None:
        what = f"{len(rest)} sample" + "s" * (len(rest) > 1)
        try:
            graphs.append(capture_size(rest, what, training=False))
        except BadInput as error:
            facts = f"the last test batch, of {what}: {error.facts}"
            if has_rows_of_samples(capture.evaluation) is False:
                raise BadInput(error.code, facts, fix=f"test samples that batches of {capture.batch} divide") from error
            notes.append(f"{facts}; it is filled up with samples, whose rows are left out again")
    evaluated += [
        programs(lower_cut(graph, carry_cut(capture.train, placed, graph)), training=False) for graph in graphs
    ]
    return OtherSizes(trained, evaluated, constants, tuple(dict.fromkeys(notes)))


def _list_lengths(samples: "Samples | PartSamples") -> list[int]:
    """Return the lengths to which samples are padded; none where batches have one size."""
    buckets = buckets_of(samples)
    return [] if buckets is None else buckets.lengths


def _find_other_sizes(capture: CapturedTask, samples: "Samples | PartSamples") -> "list[tuple[Data, str]]":
    """Return an example of each length that samples have and the planned batch has not, and the words for it."""
    planned = _list_shapes(capture.example.batch)
    found = [(take_first(samples, capture.batch, n), f"length {n}") for n in _list_lengths(samples)]
    return [(batch, what) for batch, what in found if _list_shapes(batch) != planned]


def _compile_training(planned: Graph, cut: Cut, train: Graph, what: str) -> list[Program]:
    """Return training programs of another size; a machine that recomputes segments of the planned one does so, too."""
    dataflow = lower_cut(train, carry_cut(planned, cut, train))
    lean = {machine for machine, _ in cut.recomputed}
    recomputed = frozenset((one.machine, one.stage) for one in dataflow.instructions if one.machine in lean)
    found = programs(replace(dataflow, cut=replace(dataflow.cut, recomputed=recomputed)), training=True)
    lies_alike = _list_layouts(found) == _list_layouts(programs(lower_cut(planned, cut), training=True))
    if not lies_alike or not all(map(_holds_what_it_overwrites, found)):
        facts = f"parameters and buffers for a batch of {what} cannot lie on the machines as planned"
        raise BadInput("E341", facts, fix="pad all samples to one length: collate_fn=cutset.PadTo(LENGTH)")
    return found


def _list_layouts(found: Sequence[Program]) -> list[list[tuple[object, ...]]]:
    """Return where the trained parameters of each machine lie, and into which axes they are divided."""
    return [
        [
            (piece.tensor, piece.box, state.offset, program.tensors[piece.tensor].sizes)
            for state in program.states
            if state.offset >= 0 and (piece := program.pieces[state.piece])
        ]
        for program in found
    ]


def _holds_what_it_overwrites(program: Program) -> bool:
    held = {(piece.tensor, piece.box) for piece in (program.pieces[state.piece] for state in program.states)}
    return all(
        (operand.tensor, operand.box) in held
        for segment in program.segments
        for step in segment.steps
        for operand in step.operands
        if step.op and operand.tensor in program.ops[step.op].writes
    )


def _take_rest(capture: CapturedTask, tests: "Samples | PartSamples") -> "Data | None":
    """Return the samples of evaluation that make no whole batch, where programs of their own compute them, else None.

    Where each row of all that is read of the output is that of one sample, the last batch is filled up, and what was
    added is left out. It cannot be where the model computes its loss itself, or compares samples, or gives parameters,
    and is not where an operator without a rule hides whether it can.
    """
    if has_rows_of_samples(capture.evaluation):
        return None
    samples = number_samples(capture.task, tests)
    count = len(samples) % capture.batch
    if not count:
        return None
    if _list_lengths(samples):  # the last samples say which length
        return samples.rows(torch.arange(len(samples) - count, len(samples)))
    return capture.example.batch.rows(torch.arange(count))


def _list_shapes(batch: "Data") -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in (*batch.inputs, *batch.targets)]
