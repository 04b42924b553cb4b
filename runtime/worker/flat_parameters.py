"""`States`: the parameters and buffers of one machine.

Trained parameters are views of one flat buffer, their gradients of its twin.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...partition.ir.box import Box, sizes, slices, volume
from ...partition.ir.graph import TensorInfo
from .program import Program

Region = tuple[str, Box]


class States:
    """values, gradients: flat, one element a trained parameter element; pieces: tensors in the shape of their boxes.

    infos: the tensors that the pieces are boxes of, by name.
    """

    def __init__(self, program: Program) -> None:
        dtype = getattr(torch, program.dtype)
        self.values = torch.zeros(program.elements, dtype=dtype)
        self.gradients = torch.zeros(program.elements, dtype=dtype)
        self.pieces: dict[Region, Tensor] = {}
        self.infos: dict[str, TensorInfo] = {}
        self._spans: dict[Region, slice] = {}  # of what is trained, in the flat buffers
        for state in program.states:
            if state.offset >= 0:
                info = program.pieces[state.piece]
                span = slice(state.offset, state.offset + volume(info.box))
                leaf = self.values[span].view(sizes(info.box)).requires_grad_()
                leaf.grad = self.gradients[span].view(sizes(info.box))
                self.pieces[info.tensor, info.box] = leaf
                self._spans[info.tensor, info.box] = span
                self.infos[info.tensor] = program.tensors[info.tensor]
        self.extend(program)

    def move(self, values: Tensor) -> None:
        """The trained pieces are views of another flat buffer from now on, which holds what it is to hold already."""
        self.values = values
        for region, span in self._spans.items():
            self.pieces[region].data = values[span].view(self.pieces[region].shape)

    def extend(self, program: Program) -> None:
        """Add what another program of the same cut (evaluation) holds besides: its own constants, say."""
        for state in program.states:
            info = program.pieces[state.piece]
            if (info.tensor, info.box) in self.pieces:
                continue
            tensor = program.tensors[info.tensor]
            self.pieces[info.tensor, info.box] = torch.zeros(sizes(info.box), dtype=getattr(torch, tensor.dtype))
            self.infos[info.tensor] = tensor

    @torch.no_grad()
    def load(self, value: Callable[[str], Tensor]) -> None:
        """Fill every piece from the whole tensors that `value(name)` gives; only the piece is kept."""
        for (name, box), piece in self.pieces.items():
            piece.copy_(value(name).reshape(self.infos[name].extents)[slices(box)])
