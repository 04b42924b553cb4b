"""How a gradient becomes the tensors of a push, and how a shard makes it of those again."""

from typing import Any

import msgspec
import torch
from torch import Tensor

from ...errors import UsageError
from .compression import AnyCompression, Tensors
from .slice_state import finite

PACKED = "packed"  # in the body of a push: the compression that made its tensors; without it they are the gradient


class Packed(msgspec.Struct, frozen=True, eq=False):
    """A gradient [n] as it travels; compression: that made `tensors` of it, None where it is the only one.

    borrowed: whether that is the worker's own, which will be written again.
    """

    tensors: Tensors
    compression: AnyCompression | None = None
    borrowed: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """What the body of the push says of it."""
        return {} if self.compression is None else {PACKED: msgspec.to_builtins(self.compression)}

    def kept(self, tensors: Tensors) -> "Packed":
        """The same, when the channel has copied what was borrowed: to these tensors."""
        return Packed(tensors, self.compression) if self.borrowed else self

    def gradient(self, size: int, dtype: torch.dtype) -> Tensor:
        """What the shard makes of it [size]; ValueError, in words that follow "the push", where it is no gradient."""
        if self.compression is not None:
            return self.compression.unpack(self.tensors, size, dtype)
        found = [(tensor.dtype, list(tensor.shape)) for tensor in self.tensors]
        if [shape for _, shape in found] != [[size]]:
            raise ValueError(f"has tensors of shapes {[shape for _, shape in found]}; the slice is one of [{size}]")
        if self.tensors[0].dtype != dtype:
            raise ValueError(f"has a {found[0][0]} gradient for {dtype} values")
        return self.tensors[0]


class Packer:
    """Packs the gradients of one slice. residual: what the shard was not told of them yet; None without feedback."""

    def __init__(self, compression: AnyCompression | None) -> None:
        self.residual: Tensor | None = None
        self._compression = compression

    def pack(self, gradient: Tensor, *, given: bool = False) -> Packed:
        """A gradient [n], which is not changed; without a compression it is borrowed, unless it is given for good.

        What is not finite travels as it is, so that the shard finds it, and spoils no later push.
        """
        compression = self._compression
        if compression is None:
            return Packed((gradient,), borrowed=not given)
        if not compression.feedback:
            return Packed(compression.pack(gradient), compression)
        if self.residual is None:
            self.residual = torch.zeros_like(gradient)
        total = self.residual.add_(gradient)
        if not finite(total):
            self.residual = None
            return Packed((total,))
        return Packed(compression.pack(total), compression)


def received(body: dict[str, Any], tensors: Tensors) -> Packed:
    """What a push brings; ValueError where its body names no compression."""
    if PACKED not in body:
        return Packed(tensors)
    try:
        return Packed(tensors, msgspec.convert(body[PACKED], type=AnyCompression))
    except (msgspec.ValidationError, UsageError) as error:
        raise ValueError(f"is packed in a way that there is not: {error}") from error
