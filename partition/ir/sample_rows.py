"""Tells whether a model computes each row of its output from one sample of the batch alone.

Only then is the output of a small batch that of a larger one, with samples added to fill it up, less the added rows.
What is compared across samples (a contrastive loss, a mean over the batch), has samples along another dimension or none
at all, or is hidden in an operator without a rule, may change with the samples that were added.
"""

from .graph import OPAQUE, Follow, Graph, LoopNest, Op, Operand

MIXED = -1  # in the place of an axis: samples are mixed, or nobody knows


def has_rows_of_samples(graph: Graph) -> bool:
    """Whether row i of everything that is read of a model's output is computed from sample i alone."""
    found = _find_sample_axes(graph)
    return all(found.get(name) == 0 and len(graph.tensors[name].sizes[0]) == 1 for name in graph.results)


def _find_sample_axes(graph: Graph) -> dict[str, int]:
    """Return the axis along which a tensor has the samples, or MIXED; nothing for tensors without any samples."""
    inputs = [info for info in graph.tensors.values() if info.kind in ("input", "target") and info.shape]
    found = {info.name: 0 if len(info.sizes[0]) == 1 else MIXED for info in inputs}
    for op in graph.ops:  # in the order of execution
        read = [operand for operand in op.nest.operands if operand.tensor in found]
        axes = {_follow_samples(op, operand, found[operand.tensor]) for operand in read}
        if axes:
            found.update(dict.fromkeys(op.outputs, axes.pop() if len(axes) == 1 else MIXED))
    return found


def _follow_samples(op: Op, operand: Operand, axis: int) -> int:
    """Return the axis of an operator's output along which the samples of an operand are, if it keeps them apart."""
    if axis == MIXED or len(op.outputs) != 1 or op.sharding_rule == OPAQUE:
        return MIXED
    reading = operand.readings[axis]
    return reading.loop if isinstance(reading, Follow) and _keeps_apart(op.nest, reading.loop) else MIXED


def _keeps_apart(nest: LoopNest, loop: int) -> bool:
    return nest.loops[loop].kind == "parallel" and loop not in nest.non_additive
