"""Binds the labels of a signature to axes: dimensions of equal labels become one axis.

A label whose dimensions have no common refinement (12 as 3 x 4 and as 2 x 6 has one, 4 x 6 and 3 x 8 have none) is
given up: its loops are never cut, and it is read whole. Where a slice or a concatenation meets a dimension of several
axes, it moves along whole chunks of the inner ones, such as the second third of 3 x heads x 16.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..ir.axes import Axes
from ..operators.sharding.signature import Composite, FixedRange, Labels, Signature, Sliding

Sequences = Sequence[tuple[int, ...]]  # axes per dimension


class LabelBinding(NamedTuple):
    """A label and the axes of a tensor that it stands for, as they were entered (see `Axes.resolve`)."""

    label: str | Sliding | FixedRange | None
    axes: tuple[int, ...]


@dataclass
class BoundSignature:
    """A signature in axes: the bindings of the output first, then of every operand and of the dropout mask.

    name: of the operator. given_up: labels whose dimensions do not divide.
    """

    name: str
    bindings: list[list[LabelBinding]]
    given_up: set[str] = field(default_factory=set)

    def find(self, label: str) -> Iterator[LabelBinding]:
        """Iterate over all bindings that follow a label or slide along it."""
        for binding in (binding for tensor in self.bindings for binding in tensor):
            if label == binding.label or (isinstance(binding.label, Sliding) and binding.label.label == label):
                yield binding

    def renumber(self, final: Callable[[tuple[int, ...]], tuple[int, ...]]) -> "BoundSignature":
        """Return the same with other axes."""
        bindings = [[LabelBinding(one.label, final(one.axes)) for one in tensor] for tensor in self.bindings]
        return BoundSignature(self.name, bindings, self.given_up)

    @property
    def windows(self) -> dict[str, list[Sliding]]:
        """Windows by the label that they move along."""
        windows: dict[str, list[Sliding]] = {}
        for binding in (binding for tensor in self.bindings for binding in tensor):
            if isinstance(binding.label, Sliding):
                windows.setdefault(binding.label.label, []).append(binding.label)
        return windows


def bind_labels(name: str, tensors: Sequence[tuple[Labels, Sequences]], axes: Axes) -> BoundSignature:
    """Bind the labels of operator `name`, the output's first, and make the dimensions of equal labels one axis.

    tensors: labels and dimensions of each. axes: is changed.
    """
    bound = BoundSignature(name, [])
    for labels, shape in tensors:
        bound.bindings.append(list(_bind(labels, shape, axes, bound)))
    first: dict[str, tuple[int, ...]] = {}
    for binding in (binding for tensor in bound.bindings for binding in tensor):
        if isinstance(binding.label, str) and not axes.equate(
            first.setdefault(binding.label, binding.axes), binding.axes
        ):
            bound.given_up.add(binding.label)
    return bound


def _bind(labels: Labels, shape: Sequences, axes: Axes, bound: BoundSignature) -> Iterator[LabelBinding]:
    previous: list[int] = []
    for i, (label, dim) in enumerate(zip(labels, shape, strict=True)):
        if isinstance(label, Composite):
            yield from _bind_composite(label, dim, axes, bound)
        elif not isinstance(label, str):
            yield LabelBinding(label, dim)
        elif i + 1 < len(labels) and labels[i + 1] == label:  # dimensions that are one index range together
            previous += dim
        else:
            yield LabelBinding(label, (*previous, *dim))
            previous = []


def _bind_composite(
    label: Composite, dim: tuple[int, ...], axes: Axes, bound: BoundSignature
) -> Iterator[LabelBinding]:
    new = [axes.new(f"{bound.name}.{name}", size) for name, size in label.parts]
    if axes.equate(dim, [axis for part in new for axis in part]):
        yield from (LabelBinding(name, part) for (name, _), part in zip(label.parts, new, strict=True))
        return
    names = [name for name, _ in label.parts if name is not None]
    bound.given_up.update((*names, "*".join(names)))
    yield LabelBinding("*".join(names), dim)


# Slices and concatenations of several axes -------------------------------------------------------------------------


def align_chunks(bound_signatures: Sequence[tuple[Signature, BoundSignature]], axes: Axes) -> None:
    """Let windows along several axes move by whole chunks of the inner axes; changes the bound signatures.

    So do several equal slices of one dimension, such as the parts of a fused projection: their inside is then one axis.
    """
    pending = {
        (bound.name, label): bound
        for signature, bound in bound_signatures
        for label, windows in bound.windows.items()
        if label not in signature.fixed and all((w.stride, w.extent, w.divisor) == (1, 1, 1) for w in windows)
    }
    met = _find_equal_chunks(pending, axes) - _find_kept_whole(pending, [bound for _, bound in bound_signatures], axes)
    while met := met | {key for key, bound in pending.items() if _has_several_axes(bound, key[1], axes)}:
        for name, label in (key for key in pending if key in met):
            _split_into_chunks(pending[name, label], label, axes)
        pending = {key: bound for key, bound in pending.items() if key not in met}
        met = set()


Sliders = Mapping[tuple[str, str], BoundSignature]  # by operator and label


def _find_equal_chunks(sliders: Sliders, axes: Axes) -> set[tuple[str, str]]:
    """Return the windows that are one of several equal chunks of the same dimension."""
    chunks: dict[tuple[tuple[int, ...], int], dict[tuple[str, str], int]] = {}
    for (name, label), bound in sliders.items():
        bindings = list(bound.find(label))
        whole = [binding for binding in bindings if isinstance(binding.label, Sliding)]
        size, *others = {math.prod(axes.sizes(binding.axes)) for binding in bindings if binding.label == label}
        if len(whole) != 1 or others:
            continue
        offset = bound.windows[label][0].offset
        if offset % size == 0 and math.prod(axes.sizes(whole[0].axes)) % size == 0:
            chunks.setdefault((axes.resolve(whole[0].axes), size), {})[name, label] = offset
    return {key for offsets in chunks.values() if len(set(offsets.values())) > 1 for key in offsets}


def _find_kept_whole(sliders: Sliders, bound_signatures: Sequence[BoundSignature], axes: Axes) -> set[tuple[str, str]]:
    """Return the windows along axes that a filter slides over, or that are put together again (rotary halves)."""
    kept: set[int] = set()
    for bound in bound_signatures:
        for label, windows in bound.windows.items():
            if (bound.name, label) not in sliders or len(windows) > 1:
                kept.update(axis for binding in bound.find(label) for axis in axes.resolve(binding.axes))
    return {
        (name, label)
        for (name, label), bound in sliders.items()
        if any(kept.intersection(axes.resolve(binding.axes)) for binding in bound.find(label))
    }


def _has_several_axes(bound: BoundSignature, label: str, axes: Axes) -> bool:
    return label not in bound.given_up and any(len(axes.resolve(binding.axes)) > 1 for binding in bound.find(label))


def _split_into_chunks(bound: BoundSignature, label: str, axes: Axes) -> None:
    bindings = list(bound.find(label))
    sizes = [math.prod(axes.sizes(binding.axes)) for binding in bindings]
    chunk = math.gcd(*sizes, *(window.offset for window in bound.windows[label]))
    inner = axes.new(f"{bound.name}.chunk", chunk)
    outer = [axes.new(f"{bound.name}.chunks", size // chunk) for size in sizes]
    if not inner or not all(
        axes.equate(binding.axes, (*o, *inner)) for binding, o in zip(bindings, outer, strict=True)
    ):
        return
    # Whether the output has a single chunk.
    one = next(not o for binding, o in zip(bindings, outer, strict=True) if binding.label == label)
    halves = {
        binding: [LabelBinding(_label_of_chunks(binding.label, chunk, one), o), LabelBinding(label, inner)]
        for binding, o in zip(bindings, outer, strict=True)
    }
    bound.bindings = [
        [half for binding in tensor for half in halves.get(binding, [binding])] for tensor in bound.bindings
    ]


def _label_of_chunks(label: str | Sliding | FixedRange | None, chunk: int, one: bool) -> str | Sliding | FixedRange:
    """Return the label of whole chunks. one: the output has a single one."""
    assert isinstance(label, str | Sliding)
    if isinstance(label, str):
        return f"{label}/"
    first = label.offset // chunk
    return FixedRange(first, first + 1) if one else Sliding(f"{label.label}/", 1, first, 1, label.covers)
