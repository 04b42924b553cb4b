"""Dropout masks that do not depend on the cut: those that plain torch draws after `torch.manual_seed(mask_seed(...))`.

Every machine draws all dropout masks of a micro-batch whole, in the model's order, and cuts its boxes out of them. An
operator without a sharding rule draws by itself, from the state in which torch's generator would be by then; after a
leaf module, that is the state in which the module left it.
"""

import hashlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ...partition.ir.graph import TensorInfo
from ...partition.operators.kernel import advance_generator
from .program import Program

RngLock = AbstractContextManager[Any]  # held while torch's own generator is in use


def mask_seed(seed: int, step: int, micro: int) -> int:
    """The seed of one micro-batch of one step: `torch.manual_seed` with it makes plain torch draw the same masks."""
    digest = hashlib.sha256(f"{seed}/{step}/{micro}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def sample_masks(program: Program, seed: int) -> dict[str, Tensor]:
    """Draw what the program needs: masks times 1 / (1 - p) in the shape of their axes, and states of the generator.

    All up to the first leaf module that draws; the rest is for `sample_masks_after`.
    """
    return _draw(program, torch.Generator().manual_seed(seed), "")


def sample_masks_after(program: Program, after: str, state: Tensor) -> dict[str, Tensor]:
    """The same from the `state` in which a leaf module left the generator, of which the tensor `after` tells."""
    return _draw(program, torch.Generator().set_state(state.contiguous()), after)


def _draw(program: Program, generator: torch.Generator, after: str) -> dict[str, Tensor]:
    run = [draw for draw in program.random_draws if draw.after == after]
    values = {}
    for draw in run:
        info = program.tensors[draw.tensor]
        if draw.op:
            values[draw.tensor] = generator.get_state()
            if draw is not run[-1]:
                generator.set_state(advance_generator(program.ops[draw.op], values[draw.tensor], program.tensors))
        else:
            values[draw.tensor] = _mask(info, draw.p, generator).reshape(info.extents)
    return values


def _mask(info: TensorInfo, p: float, generator: torch.Generator) -> Tensor:
    """As aten::dropout: empty_like(x).bernoulli_(1 - p).div_(1 - p)."""
    empty = torch.empty_strided(info.shape, info.stride, dtype=getattr(torch, info.dtype))
    return empty.bernoulli_(1 - p, generator=generator).div_(1 - p)
