"""From recorded operators to a `Graph`: equate axes through the operator table, then give every operator its loops.

First all rows state which dimensions are one axis; only when no axis splits any more are loops and readings final.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from .arguments import call, decode, tensors_in
from .axis import Axes
from .errors import BadInput
from .graph import Fixed, Follow, Graph, LoopInfo, Nest, Op, Operand, Reading, TensorInfo, Window
from .randomness import DRAWS_BY_VALUE, GENERATOR_BYTES, draws, noise_name
from .rows_moving import STORE
from .signature import At, DraftTensor, Flat, Label, Labels, Signature, Site, Sliding
from .table import find

OPAQUE = "opaque"
FLOATING = ("float", "double", "half", "bfloat", "complex")


@dataclass(frozen=True)
class DraftOp:
    """An operator before its loops are known. writes: buffers that it overwrites."""

    name: str
    target: str
    arguments: dict[str, Any]
    outputs: tuple[str, ...]
    module: str
    source: str
    writes: tuple[str, ...] = ()


@dataclass
class Draft:
    """What capture recorded, in order."""

    tensors: dict[str, DraftTensor] = field(default_factory=dict)
    ops: list[DraftOp] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


Dims = dict[str, list[tuple[int, ...]]]


def resolve(draft: Draft) -> Graph:
    """The graph of recorded operators; those that nothing needs are dropped."""
    ops = _needed(draft)
    axes, dims = Axes(), Dims()
    for tensor in draft.tensors.values():
        dims[tensor.name] = _fresh(axes, tensor)
    signatures: dict[str, Signature] = {}
    for op in ops:
        signature = _sign(op, draft)
        noise = _noise(op, signature)
        if noise is not None:
            draft.tensors[noise.name] = noise
            dims[noise.name] = _fresh(axes, noise)
        if signature is not None and _equate(op, signature, axes, dims):
            signatures[op.name] = signature
        elif draws(op.target, op.arguments):
            _check_count(op)
            state = DraftTensor(noise_name(op.name), (GENERATOR_BYTES,), "uint8", "noise", (1,), 1)
            draft.tensors[state.name] = state
            dims[state.name] = _fresh(axes, state)
    return _finish(draft, ops, axes, dims, signatures)


def _noise(op: DraftOp, signature: Signature | None) -> DraftTensor | None:
    """The tensor of the random numbers that a signature asks for."""
    if signature is None or signature.noise is None:
        return None
    noise = signature.noise
    # torch draws into `empty_like(x)`, in memory order: the layout decides which number goes where.
    stride = dense_stride(noise.shape, noise.stride)
    size = getattr(torch, noise.dtype).itemsize
    return DraftTensor(noise_name(op.name), noise.shape, noise.dtype, "noise", stride, size)


def dense_stride(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The stride of `empty_like` a tensor of this shape and stride."""
    return torch.empty_like(torch.empty_strided(shape, stride, device="meta")).stride()


def _check_count(op: DraftOp) -> None:
    if op.target.split(".")[1] not in DRAWS_BY_VALUE:
        return
    where = f" at {op.source}" if op.source else ""
    raise BadInput(
        "E324",
        f"{op.target}{where} draws as many random numbers as its input makes it, which cannot be repeated",
        fix="use another operator; or train it uncut, data parallel only, with --machines 1",
    )


def _fresh(axes: Axes, tensor: DraftTensor) -> list[tuple[int, ...]]:
    return [axes.new(f"{tensor.name}.{d}", size) for d, size in enumerate(tensor.shape)]


def _needed(draft: Draft) -> list[DraftOp]:
    """Operators that lead to a result or overwrite a buffer."""
    wanted, kept = set(draft.results), []
    for op in reversed(draft.ops):
        if op.writes or wanted.intersection(op.outputs):
            kept.append(op)
            wanted.update(tensors_in(op.arguments).values())
    return kept[::-1]


def _sign(op: DraftOp, draft: Draft) -> Signature | None:
    row = find(op.target)
    if row is None or len(op.outputs) != 1 or _has_empty(op, draft):
        return None
    arguments = {name: decode(value, draft.tensors.__getitem__) for name, value in op.arguments.items()}
    return row.sign(Site(arguments, draft.tensors[op.outputs[0]]))


def _has_empty(op: DraftOp, draft: Draft) -> bool:
    names = (*op.outputs, *tensors_in(op.arguments).values())
    return any(0 in draft.tensors[name].shape for name in names)


def _read_dims(op: DraftOp, signature: Signature, dims: Dims) -> list[tuple[Labels, list[tuple[int, ...]]]]:
    """Labels beside dimensions for the output, every operand and the noise."""
    tensors = tensors_in(op.arguments)
    pairs = [(signature.output, dims[op.outputs[0]])]
    pairs += [(labels, dims[tensors[argument]]) for argument, labels in signature.operands.items()]
    if signature.noise is not None:
        pairs.append((signature.noise.labels, dims[noise_name(op.name)]))
    return pairs


def _equate(op: DraftOp, signature: Signature, axes: Axes, dims: Dims) -> bool:
    """Make dimensions of equal labels one axis; False where their sizes do not divide."""
    first: dict[str, Sequence[int]] = {}
    for labels, shape in _read_dims(op, signature, dims):
        for label, sequence in _labelled(labels, shape):
            if label not in first:
                first[label] = sequence
            elif not axes.equate(first[label], sequence):
                return False
    return True


def _labelled(labels: Labels, shape: list[tuple[int, ...]]) -> list[tuple[str, Sequence[int]]]:
    if isinstance(labels, Flat):
        return [("flat", [axis for dim in shape for axis in dim])]
    return [(label, dim) for label, dim in zip(labels, shape, strict=True) if isinstance(label, str)]


def _finish(draft: Draft, ops: list[DraftOp], axes: Axes, dims: Dims, signatures: dict[str, Signature]) -> Graph:
    used = {name for op in ops for name in (*op.outputs, *tensors_in(op.arguments).values())}
    used |= {noise_name(op.name) for op in ops} | set(draft.results)
    kept = [t for t in draft.tensors.values() if t.name in used or t.kind in ("parameter", "frozen", "buffer")]
    roots = sorted({axis for t in kept for dim in dims[t.name] for axis in axes.resolve(dim)})
    number = {axis: i for i, axis in enumerate(roots)}
    final = {t.name: [tuple(number[axis] for axis in axes.resolve(dim)) for dim in dims[t.name]] for t in kept}
    sizes = [axes[axis].size for axis in roots]
    gradient = _flowing(draft, ops)
    tensors = {
        t.name: TensorInfo(
            t.name,
            t.shape,
            t.dtype,
            t.kind,
            tuple(final[t.name]),
            tuple(tuple(sizes[axis] for axis in dim) for dim in final[t.name]),
            t.stride,
            t.name in gradient,
            t.element_bytes,
        )
        for t in kept
    }
    nests = [_nest(op, signatures.get(op.name), final, sizes, tensors) for op in ops]
    batch = {axis for t in kept if t.kind in ("input", "target") and t.shape for axis in final[t.name][0][:1]}
    return Graph(
        tensors=tensors,
        ops=tuple(
            Op(
                op.name,
                op.target,
                op.arguments,
                op.outputs,
                nest,
                op.target.rsplit(".", 1)[0] if op.name in signatures else OPAQUE,
                op.module,
                op.source,
                op.writes,
            )
            for op, nest in zip(ops, nests, strict=True)
        ),
        axes=tuple((axes[axis].name, axes[axis].size) for axis in roots),
        batch_axes=tuple(sorted(batch)),
        results=tuple(draft.results),
    )


def _flowing(draft: Draft, ops: list[DraftOp]) -> set[str]:
    """Names of the tensors through which a gradient flows."""
    flowing = {t.name for t in draft.tensors.values() if t.kind == "parameter"}
    for op in ops:
        if ".detach." in op.target or op.target == STORE or not flowing.intersection(tensors_in(op.arguments).values()):
            continue
        flowing.update(name for name in op.outputs if draft.tensors[name].dtype.startswith(FLOATING))
    return flowing


def _nest(
    op: DraftOp,
    signature: Signature | None,
    dims: Dims,
    sizes: list[int],
    tensors: dict[str, TensorInfo],
) -> Nest:
    if signature is None:
        return _opaque(op, sizes, dims, tensors)
    loops: list[LoopInfo] = []
    at: dict[str, list[int]] = {}
    pairs = _read_dims(op, signature, dims)
    slides = [
        (label.label, len(dim))
        for labels, shape in pairs
        if not isinstance(labels, Flat)
        for label, dim in zip(labels, shape, strict=True)
        if isinstance(label, Sliding)
    ]
    lengths = {label: len(list(sequence)) for label, sequence in _labelled(*pairs[0])}
    blocked = {label for label, length in slides if length != 1 or lengths[label] != 1}
    for position, (labels, shape) in enumerate(pairs):
        for label, sequence in _labelled(labels, shape):
            if label in at:
                continue
            kind = "parallel" if position == 0 else "reduction"
            if label in blocked or label in signature.fixed or (position and label not in signature.summed):
                kind = "fixed"
            at[label] = list(range(len(loops), len(loops) + len(sequence)))
            loops += [LoopInfo(axis, sizes[axis], kind) for axis in sequence]
    return Nest(tuple(loops), tuple(_operands(op, signature, dims, tensors, at, blocked)), signature.work)


def _operands(
    op: DraftOp,
    signature: Signature,
    dims: Dims,
    tensors: dict[str, TensorInfo],
    at: dict[str, list[int]],
    blocked: set[str],
) -> list[Operand]:
    names = tensors_in(op.arguments)
    operands = []
    for argument, labels in signature.operands.items():
        readings = _readings(labels, dims[names[argument]], at, blocked)
        operands.append(Operand(argument, names[argument], readings, argument in signature.once))
        if argument in signature.again:
            extents = tensors[names[argument]].extents
            operands.append(Operand(f"{argument}@whole", names[argument], (None,) * len(extents), False))
    if signature.noise is not None:
        noise = noise_name(op.name)
        operands.append(Operand("@noise", noise, _readings(signature.noise.labels, dims[noise], at, blocked), False))
    return operands


def _readings(
    labels: Labels, shape: list[tuple[int, ...]], at: dict[str, list[int]], blocked: set[str]
) -> tuple[Reading, ...]:
    if isinstance(labels, Flat):
        return tuple(Follow(loop) for loop in at["flat"])
    out: list[Reading] = []
    for label, dim in zip(labels, shape, strict=True):
        out.extend(_reading(label, dim, at, blocked))
    return tuple(out)


def _reading(label: Label, dim: tuple[int, ...], at: dict[str, list[int]], blocked: set[str]) -> list[Reading]:
    match label:
        case str():
            return [Follow(loop) for loop in at[label]]
        case Sliding(name, stride, offset, extent, covers) if name not in blocked and len(dim) == 1:
            return [Window(at[name][0], stride, offset, extent, covers)]
        case At(start, stop) if len(dim) == 1:
            return [Fixed(start, stop)]
        case _:
            return [None] * len(dim)


def _opaque(op: DraftOp, sizes: list[int], dims: Dims, tensors: dict[str, TensorInfo]) -> Nest:
    """Every operand whole, every loop fixed."""
    loops = []
    if len(op.outputs) == 1:
        loops = [LoopInfo(axis, sizes[axis], "fixed") for dim in dims[op.outputs[0]] for axis in dim]
    operands = [
        Operand(argument, name, (None,) * len(tensors[name].extents), False)
        for argument, name in tensors_in(op.arguments).items()
    ]
    flops = _flops_on_meta(op, tensors, [*op.outputs, *(o.tensor for o in operands)])
    if noise_name(op.name) in tensors:
        operands.append(Operand("@noise", noise_name(op.name), (None,), False))
    points = max(1, math.prod(loop.size for loop in loops))
    return Nest(tuple(loops), tuple(operands), flops / points)


def _flops_on_meta(op: DraftOp, tensors: dict[str, TensorInfo], touched: Sequence[str]) -> float:
    """FLOPs of a whole operator as torch counts them; where it does not, one for each element that is touched."""
    elements = float(sum(math.prod(tensors[name].shape) for name in touched))

    def on_meta(name: str) -> torch.Tensor:
        return torch.empty(tensors[name].shape, dtype=getattr(torch, tensors[name].dtype), device="meta")

    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call(op.target, {name: decode(value, on_meta) for name, value in op.arguments.items()})
    except (NotImplementedError, RuntimeError):  # an operator that cannot run without data
        return elements
    return max(elements, float(counter.get_total_flops()))
