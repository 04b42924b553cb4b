"""What cutset does with one model: capture, plan, cut and compare with plain torch."""

import math
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cutset.errors import CutsetError
from cutset.models.task import Task
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.cluster.cost_model import CostModel
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.graph import OPAQUE, Graph
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.dropout_masks import mask_seed
from cutset.runtime.worker.program import programs
from cutset.tools.task.capture_task import CapturedTask, capture_task, capture_unrolled
from cutset.tools.task.load_task import TaskSpec, build_model
from cutset.tools.task.plan_request import PlanRequest
from cutset.tools.task.plan_task import load_cut, plan_task
from cutset.tools.task.step_results import SEED, STEP, StepResult, measure

from .plain import Subject

Tell = Callable[[Mapping[str, Any]], None]
NARROW = ("float32", "bfloat16", "float16")


def examine(subject: Subject, *, machines: tuple[int, ...], tell: Tell) -> None:
    """Capture, plan and cut a subject, and tell each result as it is known; raises what cutset raises.

    Without machines it is captured alone, and not compared with plain torch either.
    """
    task = Task("swept", subject.build, subject.loss, example=lambda batch: subject.data, batch=len(subject.data))
    begin = time.perf_counter()
    tell({"stage": "capture"})
    spec = TaskSpec("swept", trust_trace=not machines)
    captured = capture_task(spec, task)
    tell({"capture_s": time.perf_counter() - begin, "notes": list(captured.notes)})
    tell(describe((capture_unrolled(captured, spec) or captured).train))  # the form that can be cut
    plans, steps = dict[str, Any](), dict[str, Any]()
    for count in machines:
        tell({"stage": f"plan {count}"})
        begin = time.perf_counter()
        planned = plan_task(captured, spec, PlanRequest(machines=count))
        plans[str(count)] = {"s": time.perf_counter() - begin, "plan": planned.placement.winner}
        tell({"plans": plans})
        tell({"stage": f"cut {count}"})
        begin = time.perf_counter()
        cut = load_cut(planned.capture, planned.placement)
        steps[str(count)] = compare(subject, task, planned.capture, cut) | {"s": time.perf_counter() - begin}
        tell({"steps": steps})
    tell({"stage": "done"})


def describe(graph: Graph) -> dict[str, Any]:
    """Return what can be cut of a training graph, and which operators cannot, with their part of the work."""
    costs = CostModel(graph.tensors)
    machine = uniform_cluster(1).machines[0]
    seconds = {op.name: sum(costs.seconds(op, op.nest.box, machine)) for op in graph.ops}
    flops = {op.name: op.flops for op in graph.ops}
    opaque: dict[str, dict[str, Any]] = {}
    for op in graph.ops:
        if not op.is_cuttable:
            row = opaque.setdefault(
                op.target,
                {
                    "count": 0,
                    "flops": 0.0,
                    "s": 0.0,
                    "opaque": op.sharding_rule == OPAQUE,
                    "at": f"{op.module} {op.source}",
                },
            )
            row["count"] += 1
            row["flops"] += flops[op.name] / (sum(flops.values()) or 1.0)
            row["s"] += seconds[op.name] / (sum(seconds.values()) or 1.0)
    return {
        "operators": len(graph.ops),
        "parameters": sum(torch.Size(p.shape).numel() for p in graph.parameters),
        "cuttable_share": 1.0 - sum(row["flops"] for row in opaque.values()),
        "cuttable_time": 1.0 - sum(row["s"] for row in opaque.values()),
        "opaque_operators": sum(row["count"] for row in opaque.values() if row["opaque"]),
        "whole": opaque,
        "narrow": sorted({t.dtype for t in graph.tensors.values() if t.dtype in NARROW and t.kind == "value"}),
    }


def compare(subject: Subject, task: Task, captured: CapturedTask, cut: Cut) -> dict[str, Any]:
    """Compute a step and an evaluation of a cut; return how far they are from plain torch's, and what is allowed."""
    model = build_model(task, seed=0)
    values = collect_state(model, subject.loss, captured.constants)
    dataflow = lower_cut(captured.train, cut)
    with Replica(programs(dataflow, training=True), seed=SEED, model=model, loss=subject.loss) as replica:
        replica.load(values.__getitem__)
        loss = torch.tensor(replica.step(subject.data, STEP), dtype=torch.float64)
        found = StepResult(loss, replica.gradients(), collect_buffers(replica))
    differences = measure(found, subject.step)
    differences["evaluation"] = compare_evaluation(subject, task, captured, dataflow.cut)
    missing = [n for n, g in subject.step.gradients.items() if n not in found.gradients and g.any()]
    differences |= dict.fromkeys((f"no gradient of {name}" for name in missing), math.inf)
    differences = {name: math.inf if math.isnan(value) else value for name, value in differences.items()}
    worst = max(differences, key=lambda name: differences[name])
    return {"worst": worst, "difference": differences[worst]}


def collect_buffers(replica: Replica) -> dict[str, Tensor]:
    """Return the buffers of a replica, put together from the workers' pieces."""
    whole: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for worker in replica.workers:
        for (name, box), piece in worker.states.pieces.items():
            info = worker.program.tensors[name]
            if info.kind == "buffer":
                shapes[name] = info.shape
                into = whole.setdefault(name, torch.zeros(info.extents, dtype=piece.dtype))
                into[tuple(slice(start, stop) for start, stop in box)] = piece
    return {name: tensor.reshape(shapes[name]) for name, tensor in whole.items()}


def compare_evaluation(subject: Subject, task: Task, captured: CapturedTask, cut: Cut) -> float:
    """Return how far the first output in evaluation is from plain torch's, as a part of its largest entry."""
    model = build_model(task, seed=0)
    values = collect_state(model, subject.loss, captured.constants)
    evaluation = captured.evaluation
    dataflow = lower_cut(evaluation, carry_cut(captured.train, cut, evaluation))
    with Replica(programs(dataflow, training=False), seed=SEED, model=model, loss=subject.loss) as replica:
        replica.load(values.__getitem__)
        (found,) = replica.predict([subject.data], STEP)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(mask_seed(SEED, STEP, 0))
        expected = build_model(task, seed=0).eval()(*subject.data.inputs)[0]
    if found.shape != expected.shape:
        return math.inf
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12)).item() if expected.numel() else 0.0


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the class and message of an error, and the innermost lines that it came through."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    lines = [f"{'/'.join(f.filename.split('/')[-3:])}:{f.lineno} {f.line}" for f in frames]
    code = error.code if isinstance(error, CutsetError) else ""
    return {"error": type(error).__name__, "code": code, "message": str(error)[:1500], "lines": lines}
