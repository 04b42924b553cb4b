"""What a push carries: a gradient slice as tensors, with or without gradient compression, and its way back."""

from typing import Any

import msgspec
import torch
from torch import Tensor

from ...errors import UsageError
from .compression import AnyCompression, Tensors
from .slice_state import is_finite

FETCH = "fetch"  # key in the body of a push: the body of a fetch that travels with it, and its step
SKIPPED = "skipped"  # key in the body of a push without a gradient: the slice has that of its steps already
FACTORS = "factors"  # key in the body of a push: of the learning rate, for all or for each group, by the user's loop
COMPRESSION = "compression"  # key in the body of a push: the compression that made its tensors, if there was one


class PushPayload(msgspec.Struct, frozen=True, eq=False):
    """The tensors of a push, made of a gradient [n].

    compression: what made `tensors` of the gradient; None if the gradient is the only tensor. borrowed: whether that is
    the worker's own memory, which will be written again. skipped: there is no gradient, and nothing to apply.
    """

    tensors: Tensors = ()
    compression: AnyCompression | None = None
    borrowed: bool = False
    skipped: bool = False

    @property
    def body_fields(self) -> dict[str, Any]:
        """The fields that describe the payload in the body of a push."""
        if self.skipped:
            return {SKIPPED: True}
        return {} if self.compression is None else {COMPRESSION: msgspec.to_builtins(self.compression)}

    def with_owned(self, tensors: Tensors) -> "PushPayload":
        """Return the payload with the channel's copies in place of borrowed tensors."""
        return PushPayload(tensors, self.compression) if self.borrowed else self

    def to_gradient(self, size: int, dtype: torch.dtype) -> Tensor:
        """Return the gradient [size] that a shard applies. ValueError, worded to follow "the push", if it is none."""
        if self.compression is not None:
            return self.compression.unpack(self.tensors, size, dtype)
        shapes = [list(tensor.shape) for tensor in self.tensors]
        if shapes != [[size]]:
            raise ValueError(f"has tensors of shapes {shapes}; the slice is one of [{size}]")
        [gradient] = self.tensors
        if gradient.dtype != dtype:
            raise ValueError(f"has a {gradient.dtype} gradient for {dtype} values")
        return gradient


class GradientPacker:
    """Makes the payloads of one slice's pushes, and keeps the residual of error feedback between them.

    residual: [n], the part of past gradients that no push has carried yet; None without error feedback.
    """

    def __init__(self, compression: AnyCompression | None) -> None:
        self.residual: Tensor | None = None
        self._compression = compression

    @property
    def compresses(self) -> bool:
        """Whether payloads are other than the gradient."""
        return self._compression is not None

    def pack(self, gradient: Tensor, *, donate: bool = False) -> PushPayload:
        """Return the payload of a gradient [n], which is not changed. Without a compression it is borrowed or donated.

        Error feedback: with residual e and gradient g, send c = C(e + g) and keep e' = (e + g) - c.
        A gradient that is not finite travels as it is, so that the shard reports it, and spoils no later push.
        """
        compression = self._compression
        if compression is None:
            return PushPayload((gradient,), borrowed=not donate)
        if not compression.feedback:
            return PushPayload(compression.pack(gradient), compression)
        if self.residual is None:
            self.residual = torch.zeros_like(gradient)
        total = self.residual.add_(gradient)  # e + g
        if not is_finite(total):
            self.residual = None
            return PushPayload((total,))
        return PushPayload(compression.pack(total), compression)  # `pack` leaves e' in `total`


def parse_payload(body: dict[str, Any], tensors: Tensors) -> PushPayload:
    """Return the payload of a push message. ValueError if its body names no known compression."""
    if COMPRESSION not in body:
        return PushPayload(tensors)
    try:
        return PushPayload(tensors, msgspec.convert(body[COMPRESSION], type=AnyCompression))
    except (msgspec.ValidationError, UsageError) as error:
        raise ValueError(f"has an unknown compression: {error}") from error
