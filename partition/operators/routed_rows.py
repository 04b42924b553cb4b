"""Rows that an island reads or fills, as an expert of a mixture does: what stands around it, and how they travel.

Between machines only the tokens that go to an expert, and its results for them, need to travel (dispatch and combine:
Lepikhin et al., "GShard", ICLR 2021, section 2.2). Their number depends on data, and every tensor of the graph has a
fixed shape; so these tensors keep theirs, with zeros in all other rows, and travel without the rows that are zero.

dispatch: what the island reads, with zeros in the rows that are not chosen. The gradient passes as it is, as the island
    gives zeros for these rows.
combine: what the island gives, as it is: zeros in the rows that are not chosen. Of the gradient only the chosen rows
    pass, as the island reads no others.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

DISPATCH, COMBINE = "cutset.dispatch.default", "cutset.combine.default"
ROUTED = (DISPATCH, COMBINE)

_LIBRARY = torch.library.Library("cutset", "FRAGMENT")  # type: ignore[no-untyped-call]
for _name in ("dispatch", "combine"):
    _LIBRARY.define(f"{_name}(Tensor self, Tensor chosen, int dim, int[] chosen_dims) -> Tensor")  # type: ignore[no-untyped-call]


def keep_rows(tensor: Tensor, chosen: Tensor, dim: int, chosen_dims: Sequence[int]) -> Tensor:
    """Return a tensor with zeros in all but the chosen rows.

    chosen: boolean or integers; a row is chosen where any of its values is not zero. chosen_dims: the dimensions of
    `chosen` along which the rows lie; those of `tensor`, as many, begin with `dim`.
    """
    rows = tensor.flatten(dim, dim + len(chosen_dims) - 1)
    indices = find_chosen(chosen, chosen_dims).flatten().nonzero().squeeze(1)
    kept = torch.zeros_like(rows).index_copy_(dim, indices, rows.index_select(dim, indices))
    return kept.view(tensor.shape)


def find_chosen(chosen: Tensor, chosen_dims: Sequence[int]) -> Tensor:
    """Return whether any value of a row is not zero, in the shape of the dimensions along which the rows lie."""
    others = [d for d in range(chosen.dim()) if d not in chosen_dims]
    return chosen.any(others) if others else chosen != 0


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, chosen: Tensor, dim: int, chosen_dims: Sequence[int]) -> Tensor:
        return keep_rows(tensor, chosen, dim, chosen_dims)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return *gradients, None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, chosen: Tensor, dim: int, chosen_dims: Sequence[int]) -> Tensor:
        ctx.save_for_backward(chosen)
        ctx.dims = dim, chosen_dims
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,), (chosen,) = gradients, ctx.saved_tensors
        return keep_rows(gradient, chosen, *ctx.dims), None, None, None


def dispatch(tensor: Tensor, chosen: Tensor, dim: int, chosen_dims: Sequence[int]) -> Tensor:
    """Return what an island reads, with zeros in the rows that it does not; see `keep_rows` for the arguments."""
    rows: Tensor = _Dispatch.apply(tensor, chosen, dim, chosen_dims)  # type: ignore[no-untyped-call]
    return rows


def combine(tensor: Tensor, chosen: Tensor, dim: int, chosen_dims: Sequence[int]) -> Tensor:
    """Return what an island gives, of whose gradient only the chosen rows pass; see `keep_rows` for the arguments."""
    rows: Tensor = _Combine.apply(tensor, chosen, dim, chosen_dims)  # type: ignore[no-untyped-call]
    return rows


for _name, _function in (("dispatch", dispatch), ("combine", combine)):
    _LIBRARY.impl(_name, _function, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]


# As they travel ------------------------------------------------------------------------------------------------------


def count_packed_bytes(elements: int, row: int, element_bytes: int, density: float) -> int:
    """Return the bytes that a tensor takes without its rows of zeros, if so many are not. row: elements of a row."""
    return round(elements * element_bytes * density) + _mask_bytes(elements // max(1, row))


def _mask_bytes(rows: int) -> int:
    return -(-rows // 8)


def pack_rows(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return a tensor [.., n] as it travels: a bit for each row, uint8 [bytes], and the rows that are not zero [k, n].

    A row along the last dimension is zero where all its bits are; so nothing is lost, not even the sign of a zero.
    """
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    kept = _find_rows(rows)
    return torch.from_numpy(np.packbits(kept)), rows.index_select(0, torch.from_numpy(np.flatnonzero(kept)))


def _find_rows(rows: Tensor) -> npt.NDArray[np.bool_]:
    """Return whether any bit of a row is set."""
    words = rows.contiguous().view(torch.uint8).numpy()
    if words.shape[1] % 8 == 0:
        words = words.view(np.uint64)
    return np.asarray(np.bitwise_or.reduce(words, axis=1) != 0)


def unpack_rows(packed: tuple[Tensor, Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of a shape that `pack_rows` was given; ValueError where it was of another shape."""
    mask, rows = packed
    count = int(np.prod(shape[:-1]))
    if mask.dtype != torch.uint8 or mask.shape != (_mask_bytes(count),):
        raise ValueError(f"{tuple(mask.shape)} bytes of bits for {count} rows")
    kept = np.unpackbits(mask.numpy())
    indices = np.flatnonzero(kept)
    if kept[count:].any() or rows.shape != (len(indices), shape[-1]):
        raise ValueError(f"{tuple(rows.shape)} for {len(indices)} rows of {shape[-1]}")
    return rows.new_zeros(count, shape[-1]).index_copy_(0, torch.from_numpy(indices), rows).reshape(shape)
