"""Random numbers that do not depend on the cut: those that plain torch draws after `torch.manual_seed(draw_seed(...))`.

Every machine draws all dropout masks of a micro-batch whole, in the model's order, and cuts its boxes out of them. An
operator without a row draws by itself, from the state in which torch's generator would be by then; after a block by
hand, that is the state in which the block left it.
"""

import hashlib

import torch
from torch import Tensor

from ...partition.ir.graph import TensorInfo
from ...partition.operators.kernel import rehearse
from .program import Program


def draw_seed(seed: int, step: int, micro: int) -> int:
    """The seed of one micro-batch of one step: what `torch.manual_seed` would be given to draw the same masks."""
    digest = hashlib.sha256(f"{seed}/{step}/{micro}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def draw(program: Program, seed: int) -> dict[str, Tensor]:
    """What the program needs: masks scaled by 1 / (1 - p) in the shape of their axes, and states of the generator.

    All up to the first block by hand that draws; the rest is for `draw_on`.
    """
    return _draw(program, torch.Generator().manual_seed(seed), "")


def draw_on(program: Program, after: str, state: Tensor) -> dict[str, Tensor]:
    """The same from the `state` in which a block by hand left the generator, of which the tensor `after` tells."""
    return _draw(program, torch.Generator().set_state(state.contiguous()), after)


def _draw(program: Program, generator: torch.Generator, after: str) -> dict[str, Tensor]:
    run = [noise for noise in program.noises if noise.after == after]
    drawn = {}
    for noise in run:
        info = program.tensors[noise.tensor]
        if noise.op:
            drawn[noise.tensor] = generator.get_state()
            if noise is not run[-1]:
                generator.set_state(rehearse(program.ops[noise.op], drawn[noise.tensor], program.tensors))
        else:
            drawn[noise.tensor] = _mask(info, noise.p, generator).reshape(info.extents)
    return drawn


def _mask(info: TensorInfo, p: float, generator: torch.Generator) -> Tensor:
    """As aten::dropout: empty_like(x).bernoulli_(1 - p).div_(1 - p)."""
    empty = torch.empty_strided(info.shape, info.stride, dtype=getattr(torch, info.dtype))
    return empty.bernoulli_(1 - p, generator=generator).div_(1 - p)
