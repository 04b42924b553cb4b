"""Prints how many different results the same product has over the places in memory where its operands may lie."""

import sys

import torch
from torch import Tensor

OFFSETS = ((0, 0), (1, 0), (0, 1), (3, 2), (5, 7), (8, 4), (2, 6))  # of the operands, in elements
SIZES = ((12, 6, 20), (20, 33, 1), (7, 100, 64), (1, 784, 10), (128, 512, 10), (65, 784, 4))
DTYPES = (torch.float32, torch.float64)


def put(tensor: Tensor, offset: int) -> Tensor:
    """The same tensor `offset` elements behind where memory begins that malloc aligns."""
    memory = torch.empty(tensor.numel() + offset, dtype=tensor.dtype)[offset:]
    return memory.view(tensor.shape).copy_(tensor)


def count_results(rows: int, inner: int, columns: int, dtype: torch.dtype) -> int:
    """How many different results: inputs [rows, inner] times weights [columns, inner] transposed, as a linear layer."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, inner, generator=generator, dtype=dtype)
    weight = torch.randn(columns, inner, generator=generator, dtype=dtype)
    return len({(put(inputs, a) @ put(weight, b).t()).numpy().tobytes() for a, b in OFFSETS})


if __name__ == "__main__":
    sys.stdout.write(f"{sorted({count_results(*size, dtype) for size in SIZES for dtype in DTYPES})}\n")
