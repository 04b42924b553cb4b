"""From a `Draft` to a `Graph`: equates axes by the sharding rules of all operators, then gives each operator its loops.

First all rules state which dimensions are one axis. Only when no axis splits any more are loops and readings final.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from ...errors import BadInput
from ..discovery.found_signature import find_signature
from ..ir.arguments import decode
from ..ir.axes import Axes
from ..ir.empty_copy import dense_stride
from ..ir.graph import FOUND, OPAQUE, Graph, Op, TensorInfo
from ..ir.random_ops import DRAWS_BY_VALUE, GENERATOR_BYTES, RANDOM_OPERAND, is_random, random_tensor_name
from ..operators.registry import find_rule
from ..operators.sharding.signature import DraftTensor, Labels, Signature, Site
from .dimension_labels import BoundSignature, align_chunks, bind_labels
from .draft import Draft, DraftOp, drop_unneeded
from .islands import gather_islands
from .loop_nests import build_loop_nest, build_opaque_nest
from .untrained import FLOATING_DTYPES, passes_gradients

Dims = dict[str, list[tuple[int, ...]]]


class _InferredRule(NamedTuple):
    """An operator and its rule. rule: the name, FOUND or OPAQUE; signature: None where it is opaque."""

    op: DraftOp
    rule: str
    signature: Signature | None


def build_graph(draft: Draft) -> Graph:
    """Return the graph of a draft; operators that nothing needs are dropped. Adds the random tensors to the draft."""
    draft = gather_islands(draft)
    inferred = [_infer_rule(op, draft) for op in drop_unneeded(draft)]
    axes, dims = Axes(), Dims()
    for tensor in draft.tensors.values():
        dims[tensor.name] = _new_axes(axes, tensor)
    bound: dict[str, BoundSignature] = {}
    for op, _, signature in inferred:
        random = _random_tensor(op, signature)
        if random is not None:
            draft.tensors[random.name] = random
            dims[random.name] = _new_axes(axes, random)
        if signature is not None:
            bound[op.name] = bind_labels(op.name, _pair_labels(op, signature, dims), axes)
    align_chunks([(i.signature, bound[i.op.name]) for i in inferred if i.signature is not None], axes)
    return _number_axes(draft, inferred, axes, dims, bound)


def _random_tensor(op: DraftOp, signature: Signature | None) -> DraftTensor | None:
    """Return the dropout mask of a signature, or the state of the generator from which an opaque operator draws."""
    name = random_tensor_name(op.name)
    if signature is None and is_random(op.target, op.arguments):
        _demand_fixed_count(op)
        return DraftTensor(name, (GENERATOR_BYTES,), "uint8", "random", (1,), 1)
    if signature is None or signature.mask is None:
        return None
    mask = signature.mask
    # torch draws into `empty_like(x)`, in memory order: the layout decides which number goes where.
    stride = dense_stride(mask.shape, mask.stride)
    return DraftTensor(name, mask.shape, mask.dtype, "random", stride, getattr(torch, mask.dtype).itemsize)


def _demand_fixed_count(op: DraftOp) -> None:
    if op.target.split(".")[1] not in DRAWS_BY_VALUE:
        return
    where = f" at {op.source}" if op.source else ""
    raise BadInput(
        "E324",
        f"{op.target}{where} draws a number of random numbers that depends on its input, which cannot be repeated",
        fix="use another operator; or train it uncut, data parallel only, with --machines 1",
    )


def _new_axes(axes: Axes, tensor: DraftTensor) -> list[tuple[int, ...]]:
    return [axes.new(f"{tensor.name}.{d}", size) for d, size in enumerate(tensor.shape)]


def _infer_rule(op: DraftOp, draft: Draft) -> _InferredRule:
    """Return the rule of an operator: the written one; where there is none, the one found by running it, if any."""
    if len(op.outputs) != 1 or _has_empty(op, draft):
        return _InferredRule(op, OPAQUE, None)
    output, rule = draft.tensors[op.outputs[0]], find_rule(op.target)
    if rule is not None:
        arguments = {name: decode(value, draft.tensors.__getitem__) for name, value in op.arguments.items()}
        signature = rule.infer_signature(Site(op.target, arguments, output))
        if signature is not None:
            return _InferredRule(op, rule.name, signature)
    found = find_signature(op.target, op.arguments, draft.tensors, output)
    if found is None:
        return _InferredRule(op, OPAQUE, None)
    return _InferredRule(replace(op, arguments=found[1]), FOUND, found[0])


def _has_empty(op: DraftOp, draft: Draft) -> bool:
    names = (*op.outputs, *op.operands.values())
    return any(0 in draft.tensors[name].shape for name in names)


def _pair_labels(op: DraftOp, signature: Signature, dims: Dims) -> list[tuple[Labels, list[tuple[int, ...]]]]:
    """Return labels and the axes of the dimensions, for the output, every operand and the dropout mask."""
    tensors = op.operands
    pairs = [(signature.output, dims[op.outputs[0]])]
    pairs += [(labels, dims[tensors[argument]]) for argument, labels in signature.operands.items()]
    if signature.mask is not None:
        pairs.append((signature.mask.labels, dims[random_tensor_name(op.name)]))
    return pairs


def _number_axes(
    draft: Draft, inferred: list[_InferredRule], axes: Axes, dims: Dims, bound: Mapping[str, BoundSignature]
) -> Graph:
    ops = [op for op, _, _ in inferred]
    used = {name for op in ops for name in (*op.outputs, *op.operands.values())}
    used |= {random_tensor_name(op.name) for op in ops} | set(draft.results)
    inputs = {t.name for t in draft.tensors.values() if t.kind == "input"}
    used |= inputs if used.isdisjoint(inputs) else set()  # nothing else says how many samples a batch has
    kept = [t for t in draft.tensors.values() if t.name in used or t.kind in ("parameter", "frozen", "buffer")]
    roots = sorted({axis for t in kept for dim in dims[t.name] for axis in axes.resolve(dim)})
    sizes = [axes[axis].size for axis in roots]
    number = {axis: i for i, axis in enumerate(roots)}

    @functools.cache
    def final(sequence: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[axis] for axis in axes.resolve(sequence))

    gradient = _find_gradients(draft, ops)
    tensors = {t.name: _info(t, [final(dim) for dim in dims[t.name]], sizes, t.name in gradient) for t in kept}
    finished = {name: binding.renumber(final) for name, binding in bound.items()}
    batch = {axis for t in tensors.values() if t.kind in ("input", "target") and t.shape for axis in t.axes[0][:1]}
    return Graph(
        tensors=tensors,
        ops=tuple(_op(i, finished.get(i.op.name), tensors, sizes) for i in inferred),
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
        tensor.density,
    )


def _op(
    inferred: _InferredRule,
    bound: BoundSignature | None,
    tensors: Mapping[str, TensorInfo],
    sizes: Sequence[int],
) -> Op:
    op, rule, signature = inferred
    named = op.operands
    read = {argument: tensors[named[argument]] for argument in (signature.operands if signature else named)}
    random = tensors.get(random_tensor_name(op.name))
    if random is not None:
        read[RANDOM_OPERAND] = random
    outputs = [tensors[name] for name in op.outputs]
    if signature and bound:
        nest = build_loop_nest(signature, bound, read, sizes)
    else:
        nest = build_opaque_nest(op.target, op.arguments, read, outputs, sizes)
    return Op(op.name, op.target, op.arguments, op.outputs, nest, rule, op.module, op.source, op.writes)


def _find_gradients(draft: Draft, ops: list[DraftOp]) -> set[str]:
    """Return the names of the tensors through which a gradient flows."""
    flowing = {t.name for t in draft.tensors.values() if t.kind == "parameter"}
    for op in ops:
        if passes_gradients(op) and flowing.intersection(op.operands.values()):
            flowing.update(name for name in op.outputs if draft.tensors[name].dtype.startswith(FLOATING_DTYPES))
    return flowing
