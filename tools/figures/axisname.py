"""Names for axes that a reader knows: rows, columns, units; learned from operators with a fixed order of loops."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...partition.placement.placement_file import OpPlacement, Placement


@dataclass(frozen=True)
class AxisNames:
    """What each axis is called; an axis of which nothing is known keeps its own name."""

    names: Mapping[str, str]

    def __getitem__(self, axis: str) -> str:
        return self.names.get(axis, axis)

    def loops(self, op: OpPlacement, chosen: list[int]) -> str:
        """The chosen loops of an operator, outermost first: "rows × columns"."""
        return " × ".join(self[op.loops[i].axis] for i in chosen)


def learn(placement: Placement) -> AxisNames:
    """Names by the first operator that tells: image operators, attention, then linear ones."""
    names: dict[str, str] = {}
    for tells in (_image, _attention, _linear):
        for op in placement.ops:
            for axis, name in tells(op, placement.batch).items():
                names.setdefault(axis, name)
    return AxisNames(names)


def _parallel(op: OpPlacement) -> list[str]:
    return [loop.axis for loop in op.loops if loop.kind != "reduction"]


def _image(op: OpPlacement, batch: int) -> dict[str, str]:
    """Convolution, local filters and pooling put out batch, channels, rows, columns."""
    axes = _parallel(op)
    if "2d" not in op.op or "norm" in op.op or len(axes) != 4 or op.loops[0].size != batch:
        return {}
    return dict(zip(axes, ("batch", "channels", "rows", "columns"), strict=True))


def _attention(op: OpPlacement, batch: int) -> dict[str, str]:
    axes = _parallel(op)
    if "scaled_dot_product" not in op.op or len(axes) != 4 or op.loops[0].size != batch:
        return {}
    return dict(zip(axes, ("batch", "heads", "tokens", "head size"), strict=True))


def _linear(op: OpPlacement, batch: int) -> dict[str, str]:
    """The last loop in the output of a linear operator is its units; the first is the batch where it has that size."""
    axes = _parallel(op)
    if "linear" not in op.op or len(axes) < 2:
        return {}
    first = {axes[0]: "batch"} if op.loops[0].size == batch else {}
    return {**first, axes[-1]: "units"}
