"""Tells where a model compares the samples of a batch, and whether each row of its output is that of one sample alone.

Only in the latter case is the output of a small batch that of a larger one, with samples added to fill it up, less the
added rows. What is compared across samples (a contrastive loss, a mean over the batch), has samples along another
dimension or none at all, or is hidden in an operator without a rule, may change with the samples that were added. So
may what is computed with their number or their place in the batch, which are constants in a trace.
"""

from collections.abc import Iterator, Mapping

from .graph import OPAQUE, Follow, Graph, Op, Operand

UNKNOWN, COMPARED, SUMMED = -3, -2, -1  # in the place of the axis along which a tensor has the samples


def has_rows_of_samples(graph: Graph) -> bool | None:
    """Whether row i of all that is read of a model's output is computed from sample i alone, and from random draws.

    None where an operator without a rule, such as an LSTM or a leaf module, hides it, or where the number of samples or
    their place in the batch may matter. A buffer in which samples are kept passes them on to the next batch.
    """
    found = dict(_follow_samples(graph))
    if any(op.writes and not found.keys().isdisjoint(op.inputs) for op in graph.ops):
        return False
    counts = {info.shape[:1] for info in graph.tensors.values() if info.kind == "input"}
    hidden = {name for name in graph.results if found.get(name) == UNKNOWN and graph.tensors[name].shape[:1] in counts}
    known = [name for name in graph.results if name not in hidden]
    rows = all(found.get(name) == 0 and len(graph.tensors[name].sizes[0]) == 1 for name in known)
    return None if rows and (hidden or _may_count(graph, found)) else rows


def _may_count(graph: Graph, found: Mapping[str, int]) -> bool:
    """Whether an operator has the number of samples as an argument, or a value for each place in the batch."""
    counts = {info.shape[0] for info in graph.tensors.values() if info.kind == "input" and info.shape}
    for op in graph.ops:
        axis = found.get(op.outputs[0], UNKNOWN)
        if axis < 0:
            continue
        numbers = [value for value in op.arguments.values() if isinstance(value, int | float)]
        others = [operand.readings for operand in op.nest.operands if operand.tensor not in found]
        if not counts.isdisjoint(numbers) or any(Follow(axis) in readings for readings in others):
            return True
    return False


def find_comparison(graph: Graph) -> Op | None:
    """Return the first operator that is known to compare the samples of a batch, None if there is none.

    One number for all samples, or a sum over them, is none unless it is used beside samples again: the loss of a batch
    is the mean of those of its parts.
    """
    compared = next((name for name, axis in _follow_samples(graph) if axis == COMPARED), None)
    return next((op for op in graph.ops if compared in op.outputs), None)


def _follow_samples(graph: Graph) -> Iterator[tuple[str, int]]:
    """Yield each tensor that depends on samples, in the order of execution, with the axis along which it has them."""
    found = dict[str, int]()
    for info in graph.tensors.values():
        if info.kind in ("input", "target") and info.shape:
            found[info.name] = 0 if len(info.sizes[0]) == 1 else UNKNOWN
    yield from found.items()
    for op in graph.ops:
        read = [operand for operand in op.nest.operands if operand.tensor in found]
        axes = {
            _follow(op, operand, found[operand.tensor], of_all=not graph.tensors[op.outputs[0]].shape)
            for operand in read
        }
        if axes:
            axis = min(axes) if len(axes) == 1 or UNKNOWN in axes else COMPARED
            found.update(dict.fromkeys(op.outputs, axis))
            yield from ((name, axis) for name in op.outputs)


def _follow(op: Op, operand: Operand, axis: int, *, of_all: bool) -> int:
    """Return where an operator's output has the samples of an operand, which has them along an axis.

    of_all: whether the output is one number.
    """
    if len(op.outputs) != 1 or op.sharding_rule == OPAQUE:
        return UNKNOWN
    if axis < 0 or of_all:
        return min(axis, SUMMED)
    reading = operand.readings[axis]
    if not isinstance(reading, Follow) or reading.loop in op.nest.non_additive:
        return COMPARED
    return {"parallel": reading.loop, "reduction": SUMMED}.get(op.nest.loops[reading.loop].kind, COMPARED)
