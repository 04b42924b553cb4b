"""Slots: an operator's dimensions beside the labels that its row gives them, and the axes that labels equate.

A label whose dimensions have no common refinement (12 as 3 x 4 and as 2 x 6 is one, 4 x 6 and 3 x 8 are not) is given
up: its loops are never cut, and it is read whole. Where a slice or a concatenation meets a dimension of several axes,
it moves along whole chunks of the inner ones: the second third of 3 x heads x 16.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..ir.axes import Axes
from ..operators.signature import At, Labels, Parts, Signature, Sliding

Sequences = Sequence[tuple[int, ...]]  # axes per dimension


@dataclass(frozen=True)
class Slot:
    """Axes of a tensor that one label speaks of, as they were entered: `Axes.resolve` gives what they are now."""

    label: str | Sliding | At | None
    axes: tuple[int, ...]


@dataclass
class Spelling:
    """A signature in axes: the slots of the output first, then of every operand and of the noise.

    given_up: labels whose dimensions do not divide.
    """

    name: str
    slots: list[list[Slot]]
    given_up: set[str] = field(default_factory=set)

    def of(self, label: str) -> Iterator[Slot]:
        """All slots that follow a label or slide along it."""
        for slot in (slot for slots in self.slots for slot in slots):
            if label == slot.label or (isinstance(slot.label, Sliding) and slot.label.label == label):
                yield slot

    def renumbered(self, final: Callable[[tuple[int, ...]], tuple[int, ...]]) -> "Spelling":
        """The same with other axes."""
        slots = [[replace(slot, axes=final(slot.axes)) for slot in tensor] for tensor in self.slots]
        return replace(self, slots=slots)

    @property
    def slides(self) -> dict[str, list[Sliding]]:
        """Windows by the label that they move along."""
        found: dict[str, list[Sliding]] = {}
        for slot in (slot for slots in self.slots for slot in slots):
            if isinstance(slot.label, Sliding):
                found.setdefault(slot.label.label, []).append(slot.label)
        return found


def spell(name: str, tensors: Sequence[tuple[Labels, Sequences]], axes: Axes) -> Spelling:
    """Slots of the tensors of operator `name`, the output first, with dimensions of equal labels made one axis."""
    spelling = Spelling(name, [])
    for labels, shape in tensors:
        spelling.slots.append(list(_slots(labels, shape, axes, spelling)))
    first: dict[str, tuple[int, ...]] = {}
    for slot in (slot for slots in spelling.slots for slot in slots):
        if isinstance(slot.label, str) and not axes.equate(first.setdefault(slot.label, slot.axes), slot.axes):
            spelling.given_up.add(slot.label)
    return spelling


def _slots(labels: Labels, shape: Sequences, axes: Axes, spelling: Spelling) -> Iterator[Slot]:
    previous: list[int] = []
    for i, (label, dim) in enumerate(zip(labels, shape, strict=True)):
        if isinstance(label, Parts):
            yield from _parts(label, dim, axes, spelling)
        elif not isinstance(label, str):
            yield Slot(label, dim)
        elif i + 1 < len(labels) and labels[i + 1] == label:  # dimensions that are one index range together
            previous += dim
        else:
            yield Slot(label, (*previous, *dim))
            previous = []


def _parts(label: Parts, dim: tuple[int, ...], axes: Axes, spelling: Spelling) -> Iterator[Slot]:
    fresh = [axes.new(f"{spelling.name}.{name}", size) for name, size in label.parts]
    if axes.equate(dim, [axis for part in fresh for axis in part]):
        yield from (Slot(name, part) for (name, _), part in zip(label.parts, fresh, strict=True))
        return
    names = [name for name, _ in label.parts if name is not None]
    spelling.given_up.update((*names, "*".join(names)))
    yield Slot("*".join(names), dim)


# Slices and concatenations of several axes -------------------------------------------------------------------------


def align(spellings: Sequence[tuple[Signature, Spelling]], axes: Axes) -> None:
    """Let what slides along several axes move by whole chunks of the inner ones; changes the spellings.

    So do several equal slices of one dimension, the parts of a fused projection: their inside is then one axis.
    """
    pending = {
        (spelling.name, label): spelling
        for signature, spelling in spellings
        for label, slides in spelling.slides.items()
        if label not in signature.fixed and all((s.stride, s.extent, s.divisor) == (1, 1, 1) for s in slides)
    }
    met = _parts_of_one(pending, axes) - _kept_whole(pending, [spelling for _, spelling in spellings], axes)
    while met := met | {key for key, spelling in pending.items() if _meets_several(spelling, key[1], axes)}:
        for name, label in (key for key in pending if key in met):
            _align(pending[name, label], label, axes)
        pending = {key: spelling for key, spelling in pending.items() if key not in met}
        met = set()


Sliders = Mapping[tuple[str, str], Spelling]  # by operator and label


def _parts_of_one(sliders: Sliders, axes: Axes) -> set[tuple[str, str]]:
    """Slices that are one of several equal chunks of the same dimension."""
    chunks: dict[tuple[tuple[int, ...], int], dict[tuple[str, str], int]] = {}
    for (name, label), spelling in sliders.items():
        slots = list(spelling.of(label))
        whole = [slot for slot in slots if isinstance(slot.label, Sliding)]
        size, *others = {math.prod(axes.sizes(slot.axes)) for slot in slots if slot.label == label}
        if len(whole) != 1 or others:
            continue
        offset = spelling.slides[label][0].offset
        if offset % size == 0 and math.prod(axes.sizes(whole[0].axes)) % size == 0:
            chunks.setdefault((axes.resolve(whole[0].axes), size), {})[name, label] = offset
    return {key for offsets in chunks.values() if len(set(offsets.values())) > 1 for key in offsets}


def _kept_whole(sliders: Sliders, spellings: Sequence[Spelling], axes: Axes) -> set[tuple[str, str]]:
    """Slices along axes that a convolution or pooling slides over, or that are put together again (rotary halves)."""
    kept: set[int] = set()
    for spelling in spellings:
        for label, slides in spelling.slides.items():
            if (spelling.name, label) not in sliders or len(slides) > 1:
                kept.update(axis for slot in spelling.of(label) for axis in axes.resolve(slot.axes))
    return {
        (name, label)
        for (name, label), spelling in sliders.items()
        if any(kept.intersection(axes.resolve(slot.axes)) for slot in spelling.of(label))
    }


def _meets_several(spelling: Spelling, label: str, axes: Axes) -> bool:
    return label not in spelling.given_up and any(len(axes.resolve(slot.axes)) > 1 for slot in spelling.of(label))


def _align(spelling: Spelling, label: str, axes: Axes) -> None:
    slots = list(spelling.of(label))
    sizes = [math.prod(axes.sizes(slot.axes)) for slot in slots]
    chunk = math.gcd(*sizes, *(slide.offset for slide in spelling.slides[label]))
    inner = axes.new(f"{spelling.name}.chunk", chunk)
    outer = [axes.new(f"{spelling.name}.chunks", size // chunk) for size in sizes]
    if not inner or not all(axes.equate(slot.axes, (*o, *inner)) for slot, o in zip(slots, outer, strict=True)):
        return
    one = next(not o for slot, o in zip(slots, outer, strict=True) if slot.label == label)  # the output has one chunk
    halves = {
        slot: [Slot(_along(slot.label, chunk, one), o), Slot(label, inner)]
        for slot, o in zip(slots, outer, strict=True)
    }
    spelling.slots = [[half for slot in tensor for half in halves.get(slot, [slot])] for tensor in spelling.slots]


def _along(label: str | Sliding | At | None, chunk: int, one: bool) -> str | Sliding | At:
    """What a label says of whole chunks."""
    assert isinstance(label, str | Sliding)
    if isinstance(label, str):
        return f"{label}/"
    first = label.offset // chunk
    return At(first, first + 1) if one else Sliding(f"{label.label}/", 1, first, 1, label.covers)
