"""`Placement`: a cut as a file - readable, versioned, checked against the model, with its predicted costs.

The file is JSON with a published schema (`cutset schema`). The same model, cluster and seed give the same bytes.
A box is one interval [start, stop) per loop of an operator, or per axis of a parameter.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec

from ...errors import BadInput
from ...whole_file import write_whole
from .summary_table import render_summary

FORMAT = 2
BEGINNING = re.compile(rb'\s*\{\s*"format":[^,]{1,20},\s*"model":')  # of a placement file, also where it is damaged

Interval = tuple[int, int]


class BoxPlacement(msgspec.Struct, frozen=True, array_like=True):
    """One box on one machine."""

    box: list[Interval]
    machine: int


class Loop(msgspec.Struct, frozen=True):
    """One loop of an operator. kind: "parallel" (in the output), "reduction" (summed) or "fixed" (never cut)."""

    axis: str
    size: int
    kind: str


class OpPlacement(msgspec.Struct, frozen=True):
    """Where the boxes of one operator run.

    inputs: the operators that it reads; reads: the parameters, buffers and inputs of the model. fold: who adds its
    partial sums.
    """

    name: str
    op: str
    module: str
    inputs: list[str]
    flops: float
    loops: list[Loop]
    boxes: list[BoxPlacement]
    fold: list[BoxPlacement] = []
    reads: list[str] = []


class ParameterPlacement(msgspec.Struct, frozen=True):
    """Owners of a parameter's regions. axes: name and size of each axis, outermost first."""

    name: str
    shape: list[int]
    dtype: str
    axes: list[tuple[str, int]]
    boxes: list[BoxPlacement]


class MachinePlacement(msgspec.Struct, frozen=True):
    """A machine as planned for, and what the plan gives it in a step (forward and backward).

    recomputes: stages of its segments whose activations are recomputed in backward, since they would not fit.
    defers: stages of its segments that leave the gradients of parameters for later, each with the stage after whose
    backward they are computed.
    """

    name: str
    flops_per_s: float
    memory_bytes: int
    flops: float
    busy_s: float
    memory_used_bytes: int
    parameters: int
    recomputes: list[int] = []
    defers: list[tuple[int, int]] = []


class Traffic(msgspec.Struct, frozen=True):
    """Bytes of one tensor from one machine to another in a forward pass; the backward pass returns as many."""

    tensor: str
    source: int
    target: int
    bytes: int


class TimelineSpan(msgspec.Struct, frozen=True):
    """An interval of the predicted timeline.

    kind: "forward", "backward", "weights" (gradients of parameters that backward left for later) or "send".
    """

    machine: int
    kind: str
    label: str
    start_s: float
    stop_s: float


class Prediction(msgspec.Struct, frozen=True):
    """What the simulator expects of one step; bytes and messages are those of one micro-batch.

    least_s: seconds that no plan is below, on machines that compute all the time and send nothing.
    """

    step_s: float
    one_machine_s: float
    least_s: float
    bytes_forward: int
    messages_forward: int
    traffic: list[Traffic]
    timeline: list[TimelineSpan]


class MeasuredSteps(msgspec.Struct, frozen=True):
    """The seconds of a step as measured on the machine that was planned for: of the cut, and of one process."""

    step_s: float
    one_machine_s: float


class CandidateScore(msgspec.Struct, frozen=True):
    """One candidate plan. fits: no machine needs more memory than it has. min_load: the work of the
    least loaded machine, as a fraction of its even share; a plan with a nearly idle machine is chosen only if all have.
    split: along what most of the work is split, in a sentence.
    """

    name: str
    machines: int
    step_s: float
    bytes_forward: int
    peak_memory_bytes: int
    fits: bool
    min_load: float
    split: str = ""


class RejectedCandidate(msgspec.Struct, frozen=True):
    """A candidate that could not be made, and why."""

    name: str
    reason: str


class Fingerprint(msgspec.Struct, frozen=True):
    """What the model must look like for the placement to apply. graph: sha256 of its operators and shapes."""

    parameters: list[tuple[str, list[int], str]]
    graph: str


class Placement(msgspec.Struct, frozen=True):
    """The cut of one model over machines, as saved to a file.

    batch: samples of a micro-batch; micro_batches: how many of them make a step. objective: "time", "bytes" or
    "memory". leaf_modules: globs of the leaf modules. autocast: the dtype in which torch.autocast computes
    the model and its loss, "" where it does not. frozen: names of parameters that the run does not train, though the
    model would. unrolled: the time steps of recurrent operators are operators of their own. wave: as in `Cut`.
    lengths: to which training samples are padded, where it was planned for the longest of them and holds for all, in
    proportion; none where the task gives an example of its own. measured: where predictions were too close to tell.
    """

    format: int
    model: str
    batch: int
    micro_batches: int
    fingerprint: Fingerprint
    machines: list[MachinePlacement]
    ops: list[OpPlacement]
    parameters: list[ParameterPlacement]
    winner: str
    objective: str
    verdict: str
    predicted: Prediction
    candidates: list[CandidateScore]
    rejected: list[RejectedCandidate]
    seed: int
    versions: dict[str, str]
    leaf_modules: list[str] = []
    autocast: str = ""
    frozen: list[str] = []
    unrolled: bool = False
    wave: int = 0
    lengths: list[int] = []
    measured: MeasuredSteps | None = None

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return self.batch * self.micro_batches

    def save(self, path: str | Path) -> None:
        """Write the file atomically: it is complete or not there."""
        try:
            write_whole(Path(path), to_json(self))
        except OSError as error:
            raise BadInput("E330", f"cannot write the placement to {path}: {error.strerror}") from error

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what each machine has, and sends in a forward pass."""
        sent = [0] * len(self.machines)
        for traffic in self.predicted.traffic:
            sent[traffic.source] += traffic.bytes
        head = ("machine", "parameters", "memory, MB", "work of a step, ms", "sent, kB")
        rows = [
            (
                machine.name,
                f"{machine.parameters:,}",
                f"{machine.memory_used_bytes / 1e6:.1f}",
                f"{1e3 * machine.busy_s:.2f}",
                f"{count / 1e3:.1f}",
            )
            for machine, count in zip(self.machines, sent, strict=True)
        ]
        return render_summary(f"Cut of {self.model}: {self.winner}", self.verdict, head, rows)


def schema() -> dict[str, Any]:
    """The JSON Schema of the placement file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cutset placement",
        **msgspec.json.schema(Placement),
    }


def to_json(placement: Placement) -> str:
    """Indented where a reader looks, one line where a list of numbers would sprawl."""
    return _format_json(msgspec.to_builtins(placement)) + "\n"


def _format_json(value: Any, indent: str = "") -> str:
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + len(indent) <= 118 or not isinstance(value, dict | list):
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        rows = [f"{inner}{json.dumps(key)}: {_format_json(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _format_json(item, inner) for item in value) + f"\n{indent}]"


def load(path: str | Path) -> Placement:
    """Read a placement file; BadInput where it is missing, damaged or of a newer format."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput("E331", f"cannot read the placement {path}: {error.strerror}", fix=_plan_anew(path)) from error
    try:
        version = msgspec.json.decode(data).get("format")
    except (ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, data, error) from error
    if isinstance(version, int) and version != FORMAT:
        raise BadInput(
            "E333",
            f"the placement {path} has format {version}; this cutset reads format {FORMAT}",
            fix="pip install --upgrade cutset" if version > FORMAT else _plan_anew(path),
        )
    try:
        placement = msgspec.json.decode(data, type=Placement)
        _check_boxes(placement)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, too
        raise _damaged(path, data, error) from error
    return placement


def _damaged(path: Path, data: bytes, error: Exception) -> BadInput:
    """Return the error of a file that is no placement; what is none of cutset's is not to be replaced by one."""
    own = not data or BEGINNING.match(data) is not None
    return BadInput("E332", f"the placement {path} is damaged: {error}", fix=_plan_anew(path if own else "NEW.json"))


def _plan_anew(path: str | Path) -> str:
    return f"cutset plan TASK -o {shlex.quote(str(path))}"


def _check_boxes(placement: Placement) -> None:
    """ValueError where a box does not have an interval for each loop or axis, or names a machine that is not there."""
    sized: list[tuple[str, list[int], list[BoxPlacement]]] = [
        (op.name, [loop.size for loop in op.loops], op.boxes) for op in placement.ops
    ]
    sized += [(p.name, [size for _, size in p.axes], p.boxes) for p in placement.parameters]
    for name, sizes, pieces in sized:
        for piece in pieces:
            if len(piece.box) != len(sizes) or any(
                not 0 <= a < b <= n for (a, b), n in zip(piece.box, sizes, strict=True)
            ):
                raise ValueError(f"{name} has box {piece.box} for sizes {sizes}")
    for name, pieces in [*((op.name, [*op.boxes, *op.fold]) for op in placement.ops), *((n, p) for n, _, p in sized)]:
        for piece in pieces:
            if not 0 <= piece.machine < len(placement.machines):
                raise ValueError(f"{name} is on machine {piece.machine} of {len(placement.machines)}")
