"""Calls of operators for the tests of the operator table: random boxes, run one by one and put together, are the whole.

So are their gradients. Partial results of cut sums are added up. Each call runs twice: as it is, and with its operands
made of finer axes (as where a transformer's width is heads times head size).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec
import torch
from cutting import random_cut
from torch import Tensor

from cutset.partition.dataflow.cut import Cut, assign_fold_owners
from cutset.partition.dataflow.reduction_split import split_reductions
from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.draft.draft import Draft, DraftOp
from cutset.partition.ir.arguments import bind_arguments, call_operator, decode, find_overload
from cutset.partition.ir.box import Box, slices
from cutset.partition.ir.graph import FOUND, OPAQUE, Graph, Op, TensorInfo, is_partial, output_box, read_box
from cutset.partition.operators.kernel import prepare_box
from cutset.partition.operators.registry import TABLE
from cutset.partition.operators.sharding.sharding_rule import SUMMARY_SUFFIX
from cutset.partition.operators.sharding.signature import DraftTensor

TRIALS = 4
INF = float("inf")


@dataclass(frozen=True)
class Given:
    """One call: an ATen operator and its arguments.

    still: tensor arguments that get no gradient; output: which one of several results is meant.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    still: tuple[str, ...] = ()
    output: int | None = None

    def result(self, arguments: Mapping[str, Any]) -> Tensor:
        """What torch gives for arguments by name."""
        result = call_operator(self.target, arguments)
        return result if self.output is None else result[self.output]


Calls = Mapping[str, Given]


def given(target: str, *args: Any, still: tuple[str, ...] = (), output: int | None = None, **kwargs: Any) -> Given:
    """A call of "linear" (aten's, its default overload) or of "aten.sum.dim_IntList"."""
    return Given(target if "." in target else f"aten.{target}.default", args, kwargs, still, output)


def x(*shape: int) -> Tensor:
    """Real numbers."""
    return torch.randn(shape, dtype=torch.float64)


def n(below: int, *shape: int) -> Tensor:
    """Natural numbers."""
    return torch.randint(0, below, shape)


def b(*shape: int) -> Tensor:
    """Truth values."""
    return torch.randn(shape) > 0


def build(*families: Callable[[], Calls]) -> dict[str, Given]:
    """The calls of these functions, with the same numbers each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return {name: case for family in families for name, case in family().items()}


# What every rule must hold -----------------------------------------------------------------------------------------


def assert_boxes_are_the_whole(case: Given, *, finer: bool) -> None:
    """Random boxes of a call together give the outputs and the gradients of the whole call."""
    draft, values = drafted(case, finer)
    graph = build_graph(draft)
    op = graph.ops[-1]
    assert finer or op.sharding_rule != OPAQUE
    plain = leaves(case, values)
    whole = case.result({k: with_tensors(v, plain) for k, v in op.arguments.items()})
    assert_equal(whole, values["out"])
    weight = torch.randn(whole.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if whole.requires_grad:
        _scalar(whole * weight).backward()
    for seed in range(1, TRIALS + 1):
        inputs = leaves(case, values)
        together = assembled(op, random_boxes(graph, op, seed), graph, inputs)
        assert_equal(together, values["out"])
        if whole.requires_grad and together.requires_grad:
            _scalar(together * weight).backward()
        for tensor, leaf in inputs.items():
            expected = plain[tensor].grad
            if expected is not None:
                assert_equal(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad, expected)


def _scalar(values: Tensor) -> Tensor:
    """Something to differentiate."""
    total = values.sum()
    return total.real + 2 * total.imag if total.is_complex() else total


def assert_has_no_written_rule(case: Given) -> None:
    """The call is one block, or has a rule that was found by running it; and it runs."""
    draft, values = drafted(case, False)
    graph = build_graph(draft)
    op = graph.ops[-1]
    if op.is_cuttable:
        assert op.sharding_rule == FOUND
        assert_boxes_are_the_whole(case, finer=False)
    else:
        assert_equal(assembled(op, [op.nest.box], graph, values), values["out"])


def uncuttable(calls: Calls) -> set[str]:
    """Names of the calls that have a rule and cannot be cut."""
    return {name for name, case in calls.items() if not build_graph(drafted(case, False)[0]).ops[-1].is_cuttable}


def rules_of(module: ModuleType) -> set[str]:
    """Names of the rules that a module enters into the table."""
    return {name for name, rule in TABLE.items() if rule.infer_signature.__module__ == module.__name__}


def rules_called(calls: Calls) -> set[str]:
    """Names of the rules that calls are of."""
    return {case.target.rsplit(".", 1)[0] for case in calls.values()}


# Running boxes -----------------------------------------------------------------------------------------------------


def drafted(case: Given, finer: bool) -> tuple[Draft, dict[str, Tensor]]:
    """One operator whose tensors are inputs; with `finer` each is a reshape of an input with more dimensions."""
    draft, values = Draft(), dict[str, Tensor]()

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            values[name] = value
            _enter(draft, name, value, finer)
            return {"tensor": name}
        if isinstance(value, list):
            return [plain(item, f"{name}{i}") for i, item in enumerate(value)]
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        return {"number": str(value)} if value in (INF, -INF) else value

    complete = bind_arguments(find_overload(case.target), case.args, case.kwargs)
    result = values["out"] = case.result(complete)
    arguments = {name: plain(value, name) for name, value in complete.items()}
    if case.output is not None:
        arguments["@output"] = case.output
    draft.tensors["out"] = _draft_tensor("out", result, "value")
    draft.ops.append(DraftOp("op", case.target, arguments, ("out",), "", ""))
    draft.results = ["out"]
    return draft, values


def _enter(draft: Draft, name: str, tensor: Tensor, finer: bool) -> None:
    draft.tensors[name] = _draft_tensor(name, tensor, "value" if finer else "input")
    if not finer:
        return
    parts = [part for size in tensor.shape for part in ((2, size // 2) if size % 2 == 0 and size > 2 else (size,))]
    source = f"{name}.source"
    draft.tensors[source] = _draft_tensor(source, tensor.reshape(parts), "input")
    arguments = {"self": {"tensor": source}, "shape": list(tensor.shape)}
    draft.ops.append(DraftOp(f"{name}.reshape", "aten.reshape.default", arguments, (name,), "", ""))


def _draft_tensor(name: str, tensor: Tensor, kind: str) -> DraftTensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return DraftTensor(name, tuple(tensor.shape), dtype, kind, tensor.stride(), tensor.element_size())


def with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """An argument of a draft with its tensors in place."""
    return decode(value, tensors.__getitem__)


def run_box(
    op: Op, box: Box, reads: Mapping[str, Tensor | None], tensors: Mapping[str, TensorInfo]
) -> Sequence[Tensor]:
    """Prepare a box and run it once. reads: its operands by argument."""
    return prepare_box(op, box, list(reads), tensors)(list(reads.values()))


def operands(op: Op, box: Box, graph: Graph, values: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """What a box reads, in the shape of its dimensions."""
    found: dict[str, Tensor | None] = {}
    for operand in op.nest.operands:
        info = graph.tensors[operand.tensor]
        region = read_box(op.nest, operand, box, info.extents)
        if region is not None:
            part = values[operand.tensor].reshape(info.extents)[slices(region)]
            found[operand.argument] = part.reshape(info.local_shape(region))
        else:
            found[operand.argument] = None
    return found


def assembled(op: Op, boxes: list[Box], graph: Graph, values: Mapping[str, Tensor]) -> Tensor:
    """All boxes run one by one and put together; those that must know of each other tell first."""
    alone = msgspec.structs.replace(graph, ops=(op,))
    runs, cut = split_reductions(alone, assign_fold_owners(alone, Cut(1, {op.name: [(box, 0) for box in boxes]})))
    values = dict(values)
    for one in runs.ops:
        whole = _put_together(one, [box for box, _ in cut.boxes[one.name]], runs, values)
        values[one.outputs[0]] = whole
    return whole


def _put_together(op: Op, boxes: list[Box], graph: Graph, values: Mapping[str, Tensor]) -> Tensor:
    info = graph.tensors[op.outputs[0]]
    whole = torch.zeros(info.extents, dtype=getattr(torch, info.dtype))
    for box in boxes:
        (part,) = run_box(op, box, operands(op, box, graph, values), graph.tensors)
        part = (
            part.reshape(info.local_shape(output_box(op, info, box)))
            if op.sharding_rule.endswith(SUMMARY_SUFFIX)
            else part
        )
        at = slices(output_box(op, info, box))
        assert part.shape == info.local_shape(output_box(op, info, box))
        assert part.dtype == whole.dtype
        shaped = part.reshape(whole[at].shape)
        whole = whole.clone()
        whole[at] = whole[at] + shaped if is_partial(op.nest, box) else shaped
    return whole.reshape(info.shape)


def random_boxes(graph: Graph, op: Op, seed: int) -> list[Box]:
    """The boxes of an operator under a random cut."""
    cut = random_cut(graph, 4, [seed] * len(graph.ops))
    return [box for box, _ in cut.boxes[op.name]]


def leaves(case: Given, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that gather gradients, where they can."""
    trained = {name for name, v in values.items() if v.is_floating_point() and name not in case.still}
    return {name: v.detach().clone().requires_grad_(name in trained) for name, v in values.items() if name != "out"}


def assert_equal(found: Tensor, expected: Tensor) -> None:
    """Equal to rounding, and of one dtype."""
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if found.dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-12}
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)
