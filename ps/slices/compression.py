"""Gradient compression: pushes with fewer bytes, whose error is added to the next push (error feedback).

With residual e, gradient g and compressor C, a push carries c = C(e + g) and leaves e' = (e + g) - c; `GradientPacker`
keeps e. Error feedback: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014. `Threshold`: Strom,
"Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015. `TopK`: Aji and Heafield,
"Sparse Communication for Distributed Gradient Descent", EMNLP 2017.

Gradients are flat, [n]; k of their elements travel. With error feedback they are finite.
"""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
import torch
from torch import Tensor

from ...errors import UsageError
from ..name_and_options import parse_name_and_options

Tensors = tuple[Tensor, ...]
SAMPLE_STRIDE = 64  # one in so many elements is looked at to estimate a threshold


class Compression(msgspec.Struct, frozen=True):
    """A compressor C: plain data, so it travels with the tensors it made.

    feedback: whether `pack` leaves the error e' in its argument.
    """

    feedback: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name on the command line."""
        return str(self.__struct_config__.tag)

    def pack(self, gradient: Tensor) -> Tensors:
        """Return the tensors that travel, in their own memory. With feedback, `gradient` [n] becomes the error e'."""
        raise NotImplementedError

    def unpack(self, tensors: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Return the gradient [size] of that dtype. ValueError if `pack` cannot have made the tensors of one."""
        raise NotImplementedError

    def _demand(self, field: str, fits: Callable[[float], bool], wanted: str, example: str) -> None:
        """Raise UsageError E256 unless the field is a number that `fits`."""
        value = getattr(self, field)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not fits(value):
            raise UsageError(
                "E256",
                f"{field} of compression {self.name} is {value!r}; it must be {wanted}",
                fix=f"--compress {self.name}:{field}={example}",
            )


class BFloat16(Compression, frozen=True, tag="bf16"):
    """The upper half of a float32: its range, with 8 bits of precision. There is no error feedback."""

    feedback: ClassVar[bool] = False

    def pack(self, gradient: Tensor) -> Tensors:
        """Return bfloat16 [n]."""
        return (gradient.to(torch.bfloat16, copy=True),)  # never the gradient itself, which will be written

    def unpack(self, tensors: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Cast back to `dtype`."""
        _demand_kinds(tensors, (torch.bfloat16, size))
        return tensors[0].to(dtype)


class Int8(Compression, frozen=True, tag="int8"):
    """Integers from -127 to 127 times a scale that each block of `block` elements shares."""

    block: int = 2048

    def __post_init__(self) -> None:
        self._demand("block", lambda value: value == int(value) and value >= 1, "a whole number above 0", "2048")

    def pack(self, gradient: Tensor) -> Tensors:
        """Return int8 [n] and scales [blocks]."""
        blocks = self._blocks(gradient)
        # The smallest normal number replaces a scale of 0, and denormal ones, which have lost their precision.
        scales = torch.linalg.vector_norm(blocks, math.inf, dim=1).div_(127).clamp_(min=torch.finfo(blocks.dtype).tiny)
        rounded = torch.div(blocks, scales[:, None]).round_().clamp_(-127, 127)
        numbers = rounded.to(torch.int8).view(-1)[: gradient.numel()]
        gradient.sub_(rounded.mul_(scales[:, None]).view(-1)[: gradient.numel()])
        return numbers, scales

    def unpack(self, tensors: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Multiply each integer by the scale of its block."""
        _demand_kinds(tensors, (torch.int8, size), (dtype, -(-size // self.block)))
        numbers, scales = tensors
        return self._blocks(numbers).to(dtype).mul_(scales[:, None]).view(-1)[:size]

    def _blocks(self, flat: Tensor) -> Tensor:
        """Return [blocks, block], the last block padded with zeros; a view if it needs no padding."""
        short = -flat.numel() % self.block
        return (torch.nn.functional.pad(flat, (0, short)) if short else flat).view(-1, self.block)


class Threshold(Compression, frozen=True, tag="threshold"):
    """Sends +-tau per element once its residual exceeds tau; the rest stays in the residual (Strom, 2015)."""

    tau: float

    def __post_init__(self) -> None:
        self._demand("tau", lambda value: value > 0, "a finite number above 0", "0.001")

    def pack(self, gradient: Tensor) -> Tensors:
        """Return int32 [k], ascending: twice the index of the element, plus 1 if it is negative."""
        indices = torch.nonzero(gradient.abs() > self.tau).view(-1)
        elements = gradient[indices]
        negative = elements < 0
        gradient[indices] = torch.where(negative, elements + self.tau, elements - self.tau)
        return (indices.mul_(2).add_(negative).to(torch.int32),)

    def unpack(self, tensors: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Return +-tau at the indices, zeros elsewhere."""
        _demand_kinds(tensors, (torch.int32, None))
        codes = tensors[0].to(torch.int64)
        indices = codes >> 1
        _demand_ascending(indices, size)
        gradient = torch.zeros(size, dtype=dtype)
        gradient[indices] = (1 - 2 * (codes & 1)).to(dtype).mul_(self.tau)
        return gradient


class TopK(Compression, frozen=True, tag="topk"):
    """Sends the largest elements of each slice, this fraction of them, unchanged; the rest stays in the residual."""

    fraction: float = 0.01

    def __post_init__(self) -> None:
        self._demand("fraction", lambda value: 0 < value <= 1, "above 0, and 1 at most", "0.01")

    def pack(self, gradient: Tensor) -> Tensors:
        """Return int32 indices [k], ascending, and values [k]."""
        indices = _find_largest(gradient.abs(), math.ceil(self.fraction * gradient.numel()))
        values = gradient[indices]
        gradient[indices] = 0
        return indices.to(torch.int32), values

    def unpack(self, tensors: Sequence[Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Return the values at the indices, zeros elsewhere."""
        count = math.ceil(self.fraction * size)
        _demand_kinds(tensors, (torch.int32, count), (dtype, count))
        indices = tensors[0].to(torch.int64)
        _demand_ascending(indices, size)
        gradient = torch.zeros(size, dtype=dtype)
        gradient[indices] = tensors[1]
        return gradient


AnyCompression = BFloat16 | Int8 | Threshold | TopK
COMPRESSIONS: dict[str, type[AnyCompression]] = {
    "bf16": BFloat16,
    "int8": Int8,
    "threshold": Threshold,
    "topk": TopK,
}


def parse_compression(text: str) -> AnyCompression:
    """Return the compression named "bf16" or "topk:fraction=0.01", say. UsageError if there is none."""
    return parse_name_and_options("compression", text, COMPRESSIONS, {}, option="compress")


def _find_largest(sizes: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest elements, ascending.

    A sample gives a threshold that about twice as many elements reach; searching only those is much faster.
    """
    sample = sizes[::SAMPLE_STRIDE]
    rank = len(sample) - 2 * count // SAMPLE_STRIDE
    candidates = torch.nonzero(sizes >= sample.kthvalue(rank).values).view(-1) if rank > 0 else torch.empty(0)
    if candidates.numel() < count:
        return torch.topk(sizes, count, sorted=False).indices.sort().values
    return candidates[torch.topk(sizes[candidates], count, sorted=False).indices].sort().values


def _demand_kinds(tensors: Sequence[Tensor], *kinds: tuple[torch.dtype, int | None]) -> None:
    """Raise ValueError unless these are vectors of the given dtypes and sizes, None for any size."""
    fits = len(tensors) == len(kinds) and all(
        tensor.dtype == dtype and tensor.dim() == 1 and size in (None, tensor.numel())
        for tensor, (dtype, size) in zip(tensors, kinds, strict=True)
    )
    if not fits:
        expected = ", ".join(f"{dtype} [{'k' if size is None else size}]" for dtype, size in kinds)
        actual = ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for tensor in tensors) or "nothing"
        raise ValueError(f"has {actual}; there should be {expected}")


def _demand_ascending(indices: Tensor, size: int) -> None:
    """Raise ValueError unless the indices ascend, each once, inside [0, size)."""
    if not indices.numel():
        return
    if int(indices[0]) < 0 or int(indices[-1]) >= size or not bool((indices[1:] > indices[:-1]).all()):
        raise ValueError(f"has indices that do not ascend from 0 to {size - 1}")
