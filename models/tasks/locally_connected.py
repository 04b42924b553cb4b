"""Locally connected layers: a convolution whose filters are not shared between positions.

These are the layers of DistBelief's image nets (Dean et al., NIPS 2012, section 5). Every output position has its own
filters, so a cut into image tiles needs only the halos of the tiles.

Shapes: b batch, c channels in, o maps out, h/w image, p/q output rows and columns, i/j rows and columns of a filter.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SCHEMA = "(Tensor x, Tensor weight, Tensor? bias, int stride) -> Tensor"


def local2d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """Return y [b, o, p, q] of x [b, c, h, w], weight [p, q, o, c, i, j] and bias [o, p, q], without padding.

    This is the body of the operator `cutset::local2d`, written as one matrix product per position. Call the operator
    (`torch.ops.cutset.local2d`), so that torch.export keeps it whole. The batch is the last dimension of the patches,
    so that they are copied from contiguous memory.
    """
    rows, columns, maps, channels, height, width = weight.shape
    _check_shapes(x, weight, bias, stride)
    image = x.permute(2, 3, 1, 0)  # [h, w, c, b]
    gather: Callable[[Tensor, tuple[int, int], int], Tensor] = _gather
    if x.requires_grad and not torch._C._are_functorch_transforms_active():  # which take no derivatives of our own
        gather = _Gather.apply
    patches = gather(image, (height, width), stride)  # [p, q, c, i, j, b]
    patches = patches.reshape(rows * columns, channels * height * width, x.shape[0])
    filters = weight.reshape(rows * columns, maps, channels * height * width)
    if bias is None:
        y = torch.bmm(filters, patches)
    else:
        y = torch.baddbmm(bias.permute(1, 2, 0).reshape(rows * columns, maps, 1), filters, patches)
    if y.requires_grad:  # its gradient comes permuted, as y leaves, and bmm would copy every matrix of it by itself
        y.register_hook(_make_contiguous)  # type: ignore[no-untyped-call]
    return y.reshape(rows, columns, maps, x.shape[0]).permute(3, 2, 0, 1).contiguous()


def _make_contiguous(gradient: Tensor | None) -> Tensor | None:
    return gradient if gradient is None else gradient.contiguous()


def _gather(image: Tensor, size: tuple[int, int], stride: int) -> Tensor:
    """Return the patches [p, q, c, i, j, b] of an image [h, w, c, b], contiguous. size: (i, j)."""
    patches = image.contiguous().unfold(0, size[0], stride).unfold(1, size[1], stride)  # [p, q, c, b, i, j]
    return patches.permute(0, 1, 2, 4, 5, 3).contiguous()


class _Gather(torch.autograd.Function):
    """`_gather` with its derivative as a few sums of large slices: that of `unfold` adds up element by element."""

    of_operator = True  # which a trace keeps whole, this derivative with it

    @staticmethod
    def forward(ctx: Any, image: Tensor, size: tuple[int, int], stride: int) -> Tensor:
        ctx.shape, ctx.stride = image.shape, stride
        return _gather(image, size, stride)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (patches,) = gradients
        rows, columns, stride = patches.shape[0], patches.shape[1], ctx.stride
        image = patches.new_zeros(ctx.shape)
        for i, of_row in enumerate(patches.unbind(3)):
            band = image[i : i + rows * stride : stride]
            for j, of_element in enumerate(of_row.unbind(3)):
                band[:, j : j + columns * stride : stride].add_(of_element)
        return image, None, None


def _check_shapes(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> None:
    rows, columns, maps, channels, height, width = weight.shape
    fits = x.ndim == 4 and (
        x.shape[1] == channels
        and (x.shape[2] - height) // stride + 1 == rows
        and (x.shape[3] - width) // stride + 1 == columns
        and (bias is None or tuple(bias.shape) == (maps, rows, columns))
    )
    if not fits:
        raise ValueError(
            f"local2d: x {tuple(x.shape)} does not fit weight {tuple(weight.shape)}, stride {stride}"
            + ("" if bias is None else f" and bias {tuple(bias.shape)}")
        )


def _register() -> None:
    """Define the operator once per process; importing or reloading this file again leaves the first one in place.

    It is an implicit composite: autograd sees through it, torch.export does not.
    """
    if hasattr(torch.ops.cutset, "local2d"):
        return
    torch.library.define("cutset::local2d", SCHEMA)
    torch.library.impl("cutset::local2d", "CompositeImplicitAutograd", local2d)


_register()


class LocallyConnected2d(nn.Module):
    """A layer from x [b, in_channels, h, w] to y [b, out_channels, p, q], without padding.

    Each output position has filters of its own. size: (h, w), which the shape of the weights depends on.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, size: tuple[int, int], kernel: int, stride: int = 1
    ) -> None:
        super().__init__()
        if stride < 1 or not 1 <= kernel <= min(size):
            raise ValueError(f"LocallyConnected2d: kernel {kernel}, stride {stride} do not fit an image of {size}")
        self.stride = stride
        self.out_size = ((size[0] - kernel) // stride + 1, (size[1] - kernel) // stride + 1)
        self.weight = nn.Parameter(torch.empty(*self.out_size, out_channels, in_channels, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(out_channels, *self.out_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and biases uniformly within 1 / sqrt(fan-in), as nn.Linear does."""
        bound = 1 / math.sqrt(self.weight.shape[3:].numel())
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.cutset.local2d(x, self.weight, self.bias, self.stride)
        return y

    def extra_repr(self) -> str:
        rows, columns, maps, channels, kernel, _ = self.weight.shape
        return f"{channels}, {maps}, kernel={kernel}, stride={self.stride}, positions={rows}x{columns}"
