"""Compression of pushes: a gradient in fewer bytes. What is lost of one push is added to the next (error feedback).

Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014, has the feedback; Strom, "Scalable Distributed DNN
Training Using Commodity GPU Cloud Computing", Interspeech 2015, the threshold; Aji and Heafield, EMNLP 2017, top-k.
Gradients are flat, [n]; k is how many of their elements travel. They are finite where there is feedback.
"""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
import torch
from torch import Tensor

from ...errors import UsageError
from ..name_and_options import named

Tensors = tuple[Tensor, ...]
SAMPLED = 64  # one in so many elements


class Compression(msgspec.Struct, frozen=True):
    """Plain data, so it travels with what it made. feedback: whether `pack` leaves what it loses in its argument."""

    feedback: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """As it is asked for."""
        return str(self.__struct_config__.tag)

    def pack(self, gradient: Tensor) -> Tensors:
        """What travels, in memory of its own. With feedback `gradient` is changed to what that does not say."""
        raise NotImplementedError

    def unpack(self, tensors: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """The gradient [size] of that dtype; ValueError where the tensors are not what `pack` makes of such a one."""
        raise NotImplementedError

    def _demand(self, field: str, fits: Callable[[float], bool], wanted: str, such: str) -> None:
        value = getattr(self, field)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not fits(value):
            raise UsageError(
                "E256",
                f"{field} of compression {self.name} is {value!r}; it must be {wanted}",
                fix=f"--compress {self.name}:{field}={such}",
            )


class BFloat16(Compression, frozen=True, tag="bf16"):
    """The upper half of a float32: its range, and 8 bits of precision. Nothing is kept."""

    feedback: ClassVar[bool] = False

    def pack(self, gradient: Tensor) -> Tensors:
        """bfloat16 [n]."""
        return (gradient.to(torch.bfloat16, copy=True),)  # never the gradient itself, which will be written

    def unpack(self, tensors: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Cast back."""
        _demand_kinds(tensors, (torch.bfloat16, size))
        return tensors[0].to(dtype)


class Int8(Compression, frozen=True, tag="int8"):
    """Whole numbers from -127 to 127 for a common scale of `block` elements."""

    block: int = 2048

    def __post_init__(self) -> None:
        self._demand("block", lambda value: value == int(value) and value >= 1, "a whole number above 0", "2048")

    def pack(self, gradient: Tensor) -> Tensors:
        """int8 [n], scales [blocks]."""
        blocks = self._blocks(gradient)
        # The smallest normal number stands in for a scale of 0, and for ones that have lost their precision.
        scales = torch.linalg.vector_norm(blocks, math.inf, dim=1).div_(127).clamp_(min=torch.finfo(blocks.dtype).tiny)
        rounded = torch.div(blocks, scales[:, None]).round_().clamp_(-127, 127)
        numbers = rounded.to(torch.int8).view(-1)[: gradient.numel()]
        gradient.sub_(rounded.mul_(scales[:, None]).view(-1)[: gradient.numel()])
        return numbers, scales

    def unpack(self, tensors: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Multiply."""
        _demand_kinds(tensors, (torch.int8, size), (dtype, -(-size // self.block)))
        numbers, scales = tensors
        return self._blocks(numbers).to(dtype).mul_(scales[:, None]).view(-1)[:size]

    def _blocks(self, flat: Tensor) -> Tensor:
        """[blocks, block], the last filled up with zeros; a view where it is full."""
        short = -flat.numel() % self.block
        return (torch.nn.functional.pad(flat, (0, short)) if short else flat).view(-1, self.block)


class Threshold(Compression, frozen=True, tag="threshold"):
    """tau or -tau for what has grown to more than that, of which just so much is taken; the rest waits."""

    tau: float

    def __post_init__(self) -> None:
        self._demand("tau", lambda value: value > 0, "a finite number above 0", "0.001")

    def pack(self, gradient: Tensor) -> Tensors:
        """int32 [k]: twice the place, one more where it is negative; ascending."""
        places = torch.nonzero(gradient.abs() > self.tau).view(-1)
        found = gradient[places]
        negative = found < 0
        gradient[places] = torch.where(negative, found + self.tau, found - self.tau)
        return (places.mul_(2).add_(negative).to(torch.int32),)

    def unpack(self, tensors: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Spread out over zeros."""
        _demand_kinds(tensors, (torch.int32, None))
        codes = tensors[0].to(torch.int64)
        places = codes >> 1
        _demand_places(places, size)
        gradient = torch.zeros(size, dtype=dtype)
        gradient[places] = (1 - 2 * (codes & 1)).to(dtype).mul_(self.tau)
        return gradient


class TopK(Compression, frozen=True, tag="topk"):
    """The largest elements, this share of each slice, as they are; the rest waits."""

    share: float = 0.01

    def __post_init__(self) -> None:
        self._demand("share", lambda value: 0 < value <= 1, "above 0, and 1 at most", "0.01")

    def pack(self, gradient: Tensor) -> Tensors:
        """int32 places [k], ascending, and values [k]."""
        places = _largest(gradient.abs(), math.ceil(self.share * gradient.numel()))
        values = gradient[places]
        gradient[places] = 0
        return places.to(torch.int32), values

    def unpack(self, tensors: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Spread out over zeros."""
        count = math.ceil(self.share * size)
        _demand_kinds(tensors, (torch.int32, count), (dtype, count))
        places = tensors[0].to(torch.int64)
        _demand_places(places, size)
        gradient = torch.zeros(size, dtype=dtype)
        gradient[places] = tensors[1]
        return gradient


AnyCompression = BFloat16 | Int8 | Threshold | TopK
COMPRESSIONS: dict[str, type[AnyCompression]] = {
    "bf16": BFloat16,
    "int8": Int8,
    "threshold": Threshold,
    "topk": TopK,
}


def compression(text: str) -> AnyCompression:
    """The one asked for as "bf16" or "topk:share=0.01"; UsageError where there is none."""
    return named("compression", text, COMPRESSIONS, {}, option="compress")


def _largest(sizes: Tensor, count: int) -> Tensor:
    """The places of so many largest elements, ascending.

    They are looked for among those that are as large as, by a sample, twice as many should be: much faster.
    """
    sample = sizes[::SAMPLED]
    rank = len(sample) - 2 * count // SAMPLED
    candidates = torch.nonzero(sizes >= sample.kthvalue(rank).values).view(-1) if rank > 0 else torch.empty(0)
    if candidates.numel() < count:
        return torch.topk(sizes, count, sorted=False).indices.sort().values
    return candidates[torch.topk(sizes[candidates], count, sorted=False).indices].sort().values


def _demand_kinds(tensors: Sequence[Tensor], *kinds: tuple[torch.dtype, int | None]) -> None:
    """ValueError unless these are vectors of the given dtypes and sizes, None for any size."""
    fits = len(tensors) == len(kinds) and all(
        tensor.dtype == dtype and tensor.dim() == 1 and size in (None, tensor.numel())
        for tensor, (dtype, size) in zip(tensors, kinds, strict=True)
    )
    if not fits:
        wanted = ", ".join(f"{dtype} [{'k' if size is None else size}]" for dtype, size in kinds)
        shown = ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for tensor in tensors) or "nothing"
        raise ValueError(f"has {shown}; there should be {wanted}")


def _demand_places(places: Tensor, size: int) -> None:
    """ValueError unless these ascend, each once, inside [0, size)."""
    if not places.numel():
        return
    if int(places[0]) < 0 or int(places[-1]) >= size or not bool((places[1:] > places[:-1]).all()):
        raise ValueError(f"has places that do not ascend from 0 to {size - 1}")
