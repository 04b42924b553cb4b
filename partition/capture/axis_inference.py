"""From recorded operators to a `Graph`: equate axes through the operator table, then give every operator its loops.

First all rows state which dimensions are one axis; only when no axis splits any more are loops and readings final.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..ir.arguments import decode, tensors_in
from ..ir.axes import Axes
from ...errors import BadInput
from ..ir.graph import Graph, Op, TensorInfo
from .loop_nests import nest, opaque
from ..ir.random_ops import DRAWS_BY_VALUE, GENERATOR_BYTES, draws, noise_name
from ..operators.movement import STORE
from ..operators.signature import DraftTensor, Labels, Signature, Site
from .dimension_labels import Spelling, align, spell
from ..operators.registry import find

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
    spelled: dict[str, tuple[Signature, Spelling]] = {}
    for op in ops:
        signature = _sign(op, draft)
        noise = _noise(op, signature)
        if noise is not None:
            draft.tensors[noise.name] = noise
            dims[noise.name] = _fresh(axes, noise)
        if signature is not None:
            spelled[op.name] = signature, spell(op.name, _labelled(op, signature, dims), axes)
        elif draws(op.target, op.arguments):
            _check_count(op)
            state = DraftTensor(noise_name(op.name), (GENERATOR_BYTES,), "uint8", "noise", (1,), 1)
            draft.tensors[state.name] = state
            dims[state.name] = _fresh(axes, state)
    align(list(spelled.values()), axes)
    return _finish(draft, ops, axes, dims, spelled)


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
    """Operators that lead to a result, overwrite a buffer, or move torch's generator on."""
    wanted, kept = set(draft.results), []
    for op in reversed(draft.ops):
        if op.writes or wanted.intersection(op.outputs) or draws(op.target, op.arguments):
            kept.append(op)
            wanted.update(tensors_in(op.arguments).values())
    return kept[::-1]


def _sign(op: DraftOp, draft: Draft) -> Signature | None:
    row = find(op.target)
    if row is None or len(op.outputs) != 1 or _has_empty(op, draft):
        return None
    arguments = {name: decode(value, draft.tensors.__getitem__) for name, value in op.arguments.items()}
    return row.sign(Site(op.target, arguments, draft.tensors[op.outputs[0]]))


def _has_empty(op: DraftOp, draft: Draft) -> bool:
    names = (*op.outputs, *tensors_in(op.arguments).values())
    return any(0 in draft.tensors[name].shape for name in names)


def _labelled(op: DraftOp, signature: Signature, dims: Dims) -> list[tuple[Labels, list[tuple[int, ...]]]]:
    """Labels beside dimensions for the output, every operand and the noise."""
    tensors = tensors_in(op.arguments)
    pairs = [(signature.output, dims[op.outputs[0]])]
    pairs += [(labels, dims[tensors[argument]]) for argument, labels in signature.operands.items()]
    if signature.noise is not None:
        pairs.append((signature.noise.labels, dims[noise_name(op.name)]))
    return pairs


def _finish(
    draft: Draft, ops: list[DraftOp], axes: Axes, dims: Dims, spelled: Mapping[str, tuple[Signature, Spelling]]
) -> Graph:
    used = {name for op in ops for name in (*op.outputs, *tensors_in(op.arguments).values())}
    used |= {noise_name(op.name) for op in ops} | set(draft.results)
    kept = [t for t in draft.tensors.values() if t.name in used or t.kind in ("parameter", "frozen", "buffer")]
    roots = sorted({axis for t in kept for dim in dims[t.name] for axis in axes.resolve(dim)})
    sizes = [axes[axis].size for axis in roots]
    number = {axis: i for i, axis in enumerate(roots)}

    def final(sequence: Sequence[int]) -> tuple[int, ...]:
        return tuple(number[axis] for axis in axes.resolve(sequence))

    gradient = _flowing(draft, ops)
    tensors = {t.name: _info(t, [final(dim) for dim in dims[t.name]], sizes, t.name in gradient) for t in kept}
    finished = {name: (signature, spelling.renumbered(final)) for name, (signature, spelling) in spelled.items()}
    batch = {axis for t in tensors.values() if t.kind in ("input", "target") and t.shape for axis in t.axes[0][:1]}
    return Graph(
        tensors=tensors,
        ops=tuple(_op(op, finished.get(op.name), tensors, sizes) for op in ops),
        axes=tuple((axes[axis].name, axes[axis].size) for axis in roots),
        batch_axes=tuple(sorted(batch)),
        results=tuple(draft.results),
    )


def _info(tensor: DraftTensor, dims: Sequence[tuple[int, ...]], sizes: Sequence[int], gradient: bool) -> TensorInfo:
    return TensorInfo(
        tensor.name,
        tensor.shape,
        tensor.dtype,
        tensor.kind,
        tuple(dims),
        tuple(tuple(sizes[axis] for axis in dim) for dim in dims),
        tensor.stride,
        gradient,
        tensor.element_bytes,
    )


def _op(
    op: DraftOp,
    spelled: tuple[Signature, Spelling] | None,
    tensors: Mapping[str, TensorInfo],
    sizes: Sequence[int],
) -> Op:
    named = tensors_in(op.arguments)
    read = {argument: tensors[named[argument]] for argument in (spelled[0].operands if spelled else named)}
    noise = tensors.get(noise_name(op.name))
    if noise is not None:
        read["@noise"] = noise
    outputs = [tensors[name] for name in op.outputs]
    loops = nest(*spelled, read, sizes) if spelled else opaque(op.target, op.arguments, read, outputs, sizes)
    row = op.target.rsplit(".", 1)[0] if spelled else OPAQUE
    return Op(op.name, op.target, op.arguments, op.outputs, loops, row, op.module, op.source, op.writes)


def _flowing(draft: Draft, ops: list[DraftOp]) -> set[str]:
    """Names of the tensors through which a gradient flows."""
    flowing = {t.name for t in draft.tensors.values() if t.kind == "parameter"}
    for op in ops:
        if ".detach." in op.target or op.target == STORE or not flowing.intersection(tensors_in(op.arguments).values()):
            continue
        flowing.update(name for name in op.outputs if draft.tensors[name].dtype.startswith(FLOATING))
    return flowing
