"""Every row of the operator table: random boxes, run one by one and put together, are the whole operator.

So are their gradients. Partial results of cut sums are added up. Each call runs twice: as it is, and with its operands
made of finer axes (as where a transformer's width is heads times head size).
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cutting import random_cut
from torch import Tensor

import cutset.models.local  # noqa: F401 - registers its operator
from cutset.partition.arguments import call, decode, named, overload
from cutset.partition.box import Box, slices
from cutset.partition.graph import Graph, Op, is_partial, output_box, reads
from cutset.partition.kernel import run_box
from cutset.partition.randomness import noise_name
from cutset.partition.resolve import OPAQUE, Draft, DraftOp, resolve
from cutset.partition.rows_elementwise import BINARY, UNARY
from cutset.partition.signature import DraftTensor
from cutset.partition.table import TABLE

TRIALS = 4
NOT_TRAINED = {
    "aten.batch_norm.default": ("running_mean", "running_var"),
    "aten.cross_entropy_loss.default": ("weight",),
}
INF = float("inf")


@dataclass(frozen=True)
class Given:
    """One call: an ATen operator and its arguments."""

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def given(target: str, *args: Any, **kwargs: Any) -> Given:
    return Given(target if "." in target else f"aten.{target}.default", args, kwargs)


def x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def n(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape)


def b(*shape: int) -> Tensor:
    return torch.randn(shape) > 0


def elementwise() -> dict[str, Given]:
    """Operators of one and of two tensors, with their other arguments; "name:second" is another overload."""
    settings: dict[str, tuple[Any, ...]] = {
        "clamp": (-0.5, 0.5),
        "clamp_min": (0.1,),
        "clamp_max": (0.1,),
        "threshold": (0.1, 2.0),
        "leaky_relu": (0.2,),
        "to": (torch.float32,),
        "where": (x(4, 1), x(6)),
        "masked_fill": (b(4, 1), -INF),
    }
    variants = {"to": "dtype", "where": "self", "masked_fill": "Scalar", "threshold": "default"}
    integers = ("bitwise_and", "bitwise_or", "bitwise_not", "logical_not", "logical_and", "logical_or", "logical_xor")
    plain = ("maximum", "minimum", "logical_and", "logical_or", "logical_xor")
    calls = {}
    for name in UNARY:
        first = (
            n(2, 4, 6).bool() if name in integers else x(4, 6).abs() if name in ("log", "sqrt", "rsqrt") else x(4, 6)
        )
        calls[name] = given(f"aten.{name}.{variants.get(name, 'default')}", first, *settings.get(name, ()))
    for name in BINARY:
        first = n(2, 4, 6).bool() if name in integers else b(4, 6) if name == "where" else x(3, 4, 6)
        second = (n(2, 6).bool(),) if name in integers else (x(4, 1).abs() + 0.5,)
        if name == "pow":
            first = first.abs()
        variant = "Tensor_Tensor" if name == "pow" else "default" if name in plain else "Tensor"
        calls[name] = given(f"aten.{name}.{variants.get(name, variant)}", first, *settings.get(name, second))
    return calls


def moving() -> dict[str, Given]:
    return {
        "scalar": given("aten.add.Tensor", x(4, 6), 2.0),
        "zero-dim": given("aten.mul.Tensor", x(4, 6), x()),
        "outer": given("aten.sub.Tensor", x(4, 1, 3), x(5, 1)),
        "rounded": given("aten.div.Tensor_mode", x(4, 6), x(6).abs() + 0.5, rounding_mode="floor"),
        "clone": given("clone", x(4, 6), memory_format=torch.contiguous_format),
        "to other": given("aten.to.other", x(4, 6), x(4, 6).float()),
        "reshape": given("reshape", x(4, 6), [2, 2, 3, 2]),
        "reshape merge": given("reshape", x(2, 3, 4), [6, 4]),
        "reshape both": given("reshape", x(4, 6), [8, -1]),
        "flatten": given("aten.flatten.using_ints", x(2, 3, 4), 1),
        "unflatten": given("aten.unflatten.int", x(2, 12), 1, [3, 4]),
        "unsqueeze": given("unsqueeze", x(4, 6), 1),
        "squeeze": given("aten.squeeze.dim", x(4, 1, 6), 1),
        "expand": given("expand", x(4, 1, 3), [2, 4, 5, -1]),
        "transpose": given("aten.transpose.int", x(2, 3, 4), 0, -1),
        "t": given("t", x(3, 4)),
        "t of a vector": given("t", x(4)),
        "permute": given("permute", x(2, 3, 4), [2, 0, 1]),
        "select": given("aten.select.int", x(4, 5, 3), 1, 2),
        "select last": given("aten.select.int", x(4, 5), -1, -1),
        "slice": given("aten.slice.Tensor", x(4, 9), 1, 2, 7, 1),
        "slice step": given("aten.slice.Tensor", x(4, 9), 1, 1, 9, 3),
        "slice negative": given("aten.slice.Tensor", x(9, 4), 0, -5, -1),
        "slice one": given("aten.slice.Tensor", x(4, 9), 1, 3, 4),
        "slice all": given("aten.slice.Tensor", x(4, 9), 1, 0, 2**63 - 1),
        "cat": given("cat", [x(2, 3), x(4, 3), x(3, 3)]),
        "cat columns": given("cat", [x(4, 3), x(4, 5)], -1),
        "cat small": given("cat", [x(4, 1), x(4, 5)], 1),
    }


def contractions() -> dict[str, Given]:
    return {
        "linear": given("linear", x(5, 4), x(6, 4)),
        "linear bias": given("linear", x(5, 4), x(6, 4), x(6)),
        "linear vector": given("linear", x(4), x(6, 4), x(6)),
        "linear 3-d": given("linear", x(2, 3, 4), x(6, 4), x(6)),
        "matmul": given("matmul", x(4, 5), x(5, 3)),
        "matmul broadcast": given("matmul", x(2, 1, 4, 5), x(3, 5, 6)),
        "mm": given("mm", x(4, 5), x(5, 3)),
        "bmm": given("bmm", x(2, 4, 5), x(2, 5, 3)),
        "embedding": given("embedding", x(7, 4), n(7, 3, 5)),
        "embedding padding": given("embedding", x(7, 4), n(7, 6), 1),
        "conv1d": given("conv1d", x(2, 3, 11), x(4, 3, 3), x(4), [2], [1]),
        "conv2d": given("conv2d", x(2, 3, 7, 8), x(4, 3, 3, 2), x(4)),
        "conv2d stride": given("conv2d", x(2, 2, 9, 8), x(4, 2, 3, 3), None, [2, 2], [1, 1]),
        "conv2d dilated": given("conv2d", x(2, 2, 9, 9), x(3, 2, 3, 3), x(3), [1], [2], [2]),
        "conv2d padded": given("conv2d", x(1, 2, 6, 6), x(3, 2, 5, 3), x(3), [1, 1], [2, 1]),
        "conv2d grouped": given("conv2d", x(2, 4, 6, 6), x(6, 2, 3, 3), x(6), [1, 1], [1, 1], [1, 1], 2),
        "conv2d same": given("aten.conv2d.padding", x(2, 2, 6, 7), x(3, 2, 3, 5), x(3), [1, 1], "same"),
        "conv2d valid": given("aten.conv2d.padding", x(2, 2, 6, 7), x(3, 2, 3, 5), x(3), [1, 1], "valid"),
        "conv2d leftover": given("conv2d", x(1, 1, 10, 12), x(2, 1, 3, 3), None, [3, 4]),
        "conv2d of one column": given("conv2d", x(2, 2, 6, 1), x(3, 2, 3, 1), x(3), [1, 1], [1, 0]),
        "conv3d": given("conv3d", x(1, 2, 5, 6, 4), x(3, 2, 3, 3, 1), x(3), [1, 2, 1], [1, 0, 0]),
        "max_pool2d": given("max_pool2d", x(2, 3, 8, 9), [2, 2]),
        "max_pool2d padded": given("max_pool2d", x(2, 3, 9, 9), [3, 3], [2, 2], [1, 1]),
        "max_pool2d dilated": given("max_pool2d", x(2, 3, 9, 9), [3], [1], [1], [2]),
        "max_pool2d ceil": given("max_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [0, 0], [1, 1], True),
        "max_pool2d unbatched": given("max_pool2d", x(3, 8, 8), [2, 2]),
        "avg_pool2d": given("avg_pool2d", x(2, 3, 8, 9), [2, 3], [1, 2]),
        "avg_pool2d padded": given("avg_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [1, 1]),
        "avg_pool2d exclusive": given("avg_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [1, 1], False, False),
        "avg_pool2d ceil": given("avg_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [1, 1], True),
        "local2d": given("cutset.local2d.default", x(2, 3, 7, 8), x(5, 7, 4, 3, 3, 2), x(4, 5, 7), 1),
        "local2d stride": given("cutset.local2d.default", x(2, 2, 7, 7), x(3, 3, 4, 2, 3, 3), None, 2),
    }


def normalisation() -> dict[str, Given]:
    mask, causal = b(3, 1, 4, 5) | (torch.arange(5) == 0), {"is_causal": True}
    q, k, v = x(3, 2, 4, 6), x(3, 2, 5, 6), x(3, 2, 5, 7)
    statistics = (x(3), x(3).abs())
    return {
        "layer_norm": given("layer_norm", x(4, 5, 6), [6], x(6), x(6)),
        "layer_norm plain": given("layer_norm", x(4, 5, 6), [5, 6]),
        "batch_norm": given("batch_norm", x(4, 3, 5), x(3), x(3), None, None, True, 0.1, 1e-5, False),
        "batch_norm still": given("batch_norm", x(4, 3, 5, 2), x(3), x(3), *statistics, False, 0.1, 1e-5, False),
        "softmax": given("aten.softmax.int", x(4, 5, 6), -1),
        "log_softmax": given("aten.log_softmax.int", x(4, 5, 6), 1),
        "_softmax": given("_softmax", x(4, 6), 0, False),
        "_log_softmax": given("_log_softmax", x(4, 6), 1, False),
        "attention": given("scaled_dot_product_attention", q, k, v),
        "attention masked": given("scaled_dot_product_attention", q, k, v, mask, scale=0.3),
        "attention added": given("scaled_dot_product_attention", q, k, v, x(4, 5)),
        "attention causal": given("scaled_dot_product_attention", q, x(3, 2, 4, 6), x(3, 2, 4, 7), **causal),
        "attention 3-d": given("scaled_dot_product_attention", x(3, 4, 6), x(3, 5, 6), x(3, 5, 6)),
        "attention one head": given("scaled_dot_product_attention", q, x(3, 1, 5, 6), x(3, 1, 5, 7)),
    }


def sums() -> dict[str, Given]:
    score, soft, weight = x(6, 5), x(6, 5).softmax(1), torch.rand(5, dtype=torch.float64)
    labels, image = n(5, 6), n(5, 2, 3, 4)
    entropy = {
        "entropy": (score, labels),
        "entropy weighted": (score, labels, weight),
        "entropy ignored": (score, labels, weight, 1, 2),
        "entropy summed": (score, labels, None, 2),
        "entropy none": (score, labels, weight, 0),
        "entropy smoothed": (score, labels, weight, 1, 3, 0.2),
        "entropy smoothed plain": (score, labels, None, 1, -100, 0.1),
        "entropy soft": (score, soft, weight),
        "entropy soft smoothed": (score, soft, None, 1, -100, 0.2),
        "entropy spatial": (x(2, 5, 3, 4), image, weight, 1, 1),
        "entropy soft spatial": (x(2, 5, 3, 4), x(2, 5, 3, 4).softmax(1)),
    }
    losses = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits")
    target, reduce = torch.rand(4, 6, dtype=torch.float64), {"mean": 1, "sum": 2, "none": 0}
    return {
        "mean": given("mean", x(4, 6)),
        "mean dims": given("aten.mean.dim", x(4, 5, 6), [0, -1]),
        "mean keep": given("aten.mean.dim", x(4, 5, 6), [1], True),
        "mean rounded": given("aten.mean.dim", x(4, 5).float(), [0], dtype=torch.float64),
        "sum": given("sum", x(4, 6)),
        "sum dims": given("aten.sum.dim_IntList", x(4, 5, 6), [1, 2]),
        "sum keep": given("aten.sum.dim_IntList", x(4, 5, 6), [-1], True),
        "sum counts": given("sum", b(4, 6)),
        "sum of none": given("aten.sum.dim_IntList", x(4, 6), []),
        **{name: given("cross_entropy_loss", *args) for name, args in entropy.items()},
        **{
            f"{loss} {how}": given(loss, x(4, 6), target, reduction=code)
            for loss in losses
            for how, code in reduce.items()
        },
    }


def build() -> dict[str, Given]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return elementwise() | moving() | contractions() | normalisation() | sums()


CALLS = build()
ELSEWHERE = {"aten.dropout", "aten.copy_"}  # tested below: what draws, and what overwrites


# Running boxes -----------------------------------------------------------------------------------------------------


def drafted(case: Given, finer: bool) -> tuple[Draft, dict[str, Tensor]]:
    """One operator whose tensors are inputs; with `finer` each is a reshape of an input with more dimensions."""
    draft, values = Draft(), dict[str, Tensor]()

    def enter(name: str, tensor: Tensor) -> dict[str, str]:
        values[name] = tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape, stride = tuple(tensor.shape), tensor.stride()
        draft.tensors[name] = DraftTensor(
            name, shape, dtype, "value" if finer else "input", stride, tensor.element_size()
        )
        if finer:
            parts = [part for size in shape for part in ((2, size // 2) if size % 2 == 0 and size > 2 else (size,))]
            source = tensor.reshape(parts)
            draft.tensors[f"{name}.source"] = DraftTensor(
                f"{name}.source", tuple(parts), dtype, "input", source.stride(), 8
            )
            arguments = {"self": {"tensor": f"{name}.source"}, "shape": list(shape)}
            draft.ops.append(DraftOp(f"{name}.reshape", "aten.reshape.default", arguments, (name,), "", ""))
        return {"tensor": name}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            return enter(name, value)
        if isinstance(value, list):
            return [plain(item, f"{name}{i}") for i, item in enumerate(value)]
        if isinstance(value, torch.dtype | torch.memory_format):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        return {"number": str(value)} if value == -INF else value

    values["out"] = call(case.target, named(overload(case.target), case.args, case.kwargs))
    arguments = {k: plain(v, k) for k, v in named(overload(case.target), case.args, case.kwargs).items()}
    result = values["out"]
    dtype = str(result.dtype).removeprefix("torch.")
    draft.tensors["out"] = DraftTensor(
        "out", tuple(result.shape), dtype, "value", result.stride(), result.element_size()
    )
    draft.ops.append(DraftOp("op", case.target, arguments, ("out",), "", ""))
    draft.results = ["out"]
    return draft, values


def operands(op: Op, box: Box, graph: Graph, values: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """What a box reads, in the shape of its dimensions."""
    found: dict[str, Tensor | None] = {}
    for operand in op.nest.operands:
        info = graph.tensors[operand.tensor]
        region = reads(op.nest, operand, box, info.extents)
        if region is not None:
            part = values[operand.tensor].reshape(info.extents)[slices(region)]
            found[operand.argument] = part.reshape(info.local_shape(region))
        else:
            found[operand.argument] = None
    return found


def assembled(op: Op, boxes: list[Box], graph: Graph, values: dict[str, Tensor]) -> Tensor:
    """All boxes run one by one and put together."""
    info = graph.tensors[op.outputs[0]]
    whole = torch.zeros(info.extents, dtype=getattr(torch, info.dtype))
    for box in boxes:
        (part,) = run_box(op, box, operands(op, box, graph, values), graph.tensors)
        at = slices(output_box(op, info, box))
        assert part.shape == info.local_shape(output_box(op, info, box))
        shaped = part.reshape(whole[at].shape)
        whole = whole.clone()
        whole[at] = whole[at] + shaped if is_partial(op.nest, box) else shaped
    return whole.reshape(info.shape)


def random_boxes(graph: Graph, op: Op, seed: int) -> list[Box]:
    cut = random_cut(graph, 4, [seed] * len(graph.ops))
    return [box for box, _ in cut.boxes[op.name]]


def leaves(target: str, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies that gather gradients, where they can."""
    never = NOT_TRAINED.get(target, ())
    trained = {name for name, v in values.items() if v.is_floating_point() and name not in never}
    return {name: v.detach().clone().requires_grad_(name in trained) for name, v in values.items() if name != "out"}


def assert_equal(found: Tensor, expected: Tensor) -> None:
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if found.dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-12}
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_together_are_the_whole(name: str, finer: bool) -> None:
    case = CALLS[name]
    draft, values = drafted(case, finer)
    graph = resolve(draft)
    op = graph.ops[-1]
    assert finer or op.row != OPAQUE
    plain = leaves(case.target, values)
    whole = call(case.target, {k: _with(v, plain) for k, v in op.arguments.items()})
    assert_equal(whole, values["out"])
    weight = torch.randn(whole.shape, dtype=torch.float64)
    trained = whole.requires_grad and not name.startswith(("sign", "floor", "ceil", "round"))
    if trained:
        (whole * weight).sum().backward()
    for seed in range(1, TRIALS + 1):
        inputs = leaves(case.target, values)
        together = assembled(op, random_boxes(graph, op, seed), graph, inputs)
        assert_equal(together, values["out"])
        if trained and together.requires_grad:
            (together * weight).sum().backward()
            for tensor, leaf in inputs.items():
                expected = plain[tensor].grad
                if expected is not None:
                    assert_equal(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad, expected)


def _with(value: Any, tensors: dict[str, Tensor]) -> Any:
    return decode(value, tensors.__getitem__)


# Rows with a state of their own ------------------------------------------------------------------------------------


def masked(case: Given) -> tuple[Graph, dict[str, Tensor]]:
    """A call that draws, with its mask."""
    draft, values = drafted(case, False)
    graph = resolve(draft)
    info = graph.tensors[noise_name("op")]
    values[info.name] = (torch.rand(info.shape) > 0.4).to(torch.float64) / 0.6
    return graph, values


@pytest.mark.parametrize(
    "case",
    [
        given("dropout", torch.randn(4, 6, dtype=torch.float64), 0.4, True),
        given("scaled_dot_product_attention", *(torch.randn(2, 3, 4, 5, dtype=torch.float64),) * 3, None, 0.4),
    ],
    ids=["dropout", "attention"],
)
def test_boxes_of_what_draws_share_one_mask(case: Given) -> None:
    graph, values = masked(case)
    op = graph.ops[-1]
    whole = assembled(op, [op.nest.box], graph, values)
    for seed in range(1, TRIALS + 1):
        assert_equal(assembled(op, random_boxes(graph, op, seed), graph, values), whole)
    values[noise_name("op")].fill_(1.0)
    without = {"dropout": {"train": False}, "scaled_dot_product_attention": {"dropout_p": 0.0}}
    plain = {k: _with(v, values) for k, v in op.arguments.items()} | without[op.target.split(".")[1]]
    assert_equal(assembled(op, [op.nest.box], graph, values), call(op.target, plain))


def test_boxes_of_a_store_overwrite_their_part() -> None:
    state, new = torch.zeros(4, 6), torch.arange(6.0)
    draft, values = drafted(given("copy_", state.clone(), new), False)
    graph = resolve(draft)
    values["self"] = state
    box = ((0, 4), (2, 5))
    assembled(graph.ops[-1], [box], graph, values)
    assert torch.equal(state[:, 2:5], new[2:5].expand(4, 3))
    assert state.sum() == 4 * new[2:5].sum()


@pytest.mark.parametrize(
    "case",
    [
        given("matmul", torch.zeros(4, 5), torch.zeros(5)),
        given("aten.conv2d.padding", torch.zeros(1, 2, 6, 6), torch.zeros(3, 2, 2, 2), None, [1, 1], "same"),
        given("conv2d", torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 1, 1), None, [1, 1], [2, 2]),
        given("embedding", torch.zeros(7, 4), torch.zeros(3, dtype=torch.int64), -1, True),
        given("mse_loss", torch.zeros(4, 6), torch.zeros(6)),
        given("reshape", torch.zeros(4, 6), [3, 8]),
        given("cross_entropy_loss", torch.zeros(5), torch.tensor(1)),
        given("aten.to.other", torch.zeros(4), torch.zeros(2, 3).double()),
        given("aten.view.dtype", torch.zeros(4), torch.int32),
        given("cat", [torch.zeros(0), torch.zeros(3)]),
    ],
    ids=lambda case: case.target,
)
def test_a_call_that_no_row_describes_stays_whole(case: Given) -> None:
    draft, values = drafted(case, False)
    op = resolve(draft).ops[-1]
    assert op.row == OPAQUE
    assert not op.cuttable
    assert_equal(assembled(op, [op.nest.box], resolve(draft), values), values["out"])


def test_every_row_has_a_call() -> None:
    called = {case.target.rsplit(".", 1)[0] for case in CALLS.values()}
    assert called | ELSEWHERE == set(TABLE)


def test_most_calls_can_be_cut() -> None:
    uncut = {name for name, case in CALLS.items() if not resolve(drafted(case, False)[0]).ops[-1].cuttable}
    assert uncut == set()
