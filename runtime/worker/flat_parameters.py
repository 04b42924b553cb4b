"""`FlatParameters`: the parameters and buffers of one machine.

Trained parameters are views of one flat buffer, their gradients views of another one alike, or copies (see
flat_layout.py).
"""

import mmap
from collections.abc import Callable

import torch
from torch import Tensor

from ...partition.ir.box import Box, intersect, relative, sizes, slices, volume
from ...partition.ir.graph import TensorInfo
from ...partition.ir.regrouped_box import regroup_box
from .flat_layout import RoundedCopies
from .program import Program

PieceKey = tuple[str, Box]  # tensor and box


class FlatParameters:
    """Holds every piece of state that a program owns.

    values, gradients: flat [n], all trained elements of this machine. pieces: by tensor and box, in the shape of the
    box; the trained ones are views of `values`, or copies. infos: by name, the tensors of which the pieces are boxes.
    """

    def __init__(self, program: Program) -> None:
        dtype = getattr(torch, program.dtype)
        self.values = _reserve(program.elements, dtype)
        self.gradients = _reserve(program.elements, dtype)
        self.pieces: dict[PieceKey, Tensor] = {}
        self.infos: dict[str, TensorInfo] = {}
        self._spans: dict[PieceKey, slice] = {}  # of the trained pieces, in the flat buffers
        for state in program.states:
            if state.offset >= 0:
                info = program.pieces[state.piece]
                span = slice(state.offset, state.offset + volume(info.box))
                own = getattr(torch, program.tensors[info.tensor].dtype)
                leaf = self.values[span].view(sizes(info.box)).to(own).detach().requires_grad_()
                leaf.grad = self.gradients[span].view(sizes(info.box)).to(own)
                self.pieces[info.tensor, info.box] = leaf
                self._spans[info.tensor, info.box] = span
                self.infos[info.tensor] = program.tensors[info.tensor]
        self._copies = RoundedCopies((self.pieces[k], s) for k, s in self._spans.items() if self._is_copy(k))
        self.extend(program)

    def refresh(self) -> None:
        """Round what is a copy of `values`; to be called before pieces are read."""
        self._copies.refresh(self.values)

    def collect(self) -> None:
        """Add the gradients of copies to `gradients`; to be called after backward."""
        self._copies.collect(self.gradients)

    def masters(self) -> dict[PieceKey, Tensor]:
        """Return all pieces, without a gradient: of the trained ones the parts of `values`, never copies."""
        return {key: piece.detach() for key, piece in self.pieces.items()} | self.trained(self.values)

    def trained(self, flat: Tensor) -> dict[PieceKey, Tensor]:
        """Return the parts of a flat tensor [n], such as `gradients`, that belong to the trained pieces."""
        return {key: flat[span].view(self.pieces[key].shape) for key, span in self._spans.items()}

    def _is_copy(self, key: PieceKey) -> bool:
        return self.pieces[key].dtype != self.values.dtype

    def move(self, values: Tensor) -> None:
        """Make the trained pieces views of another flat buffer, which holds their values already."""
        self.values = values
        for key, view in self.trained(values).items():
            if not self._is_copy(key):
                self.pieces[key].data = view

    def extend(self, program: Program) -> None:
        """Add the pieces that only another program of the same cut owns, as constants that only evaluation uses."""
        for state in program.states:
            info = program.pieces[state.piece]
            tensor = program.tensors[info.tensor]
            if self.has_other_axes(tensor) or (info.tensor, info.box) in self.pieces:
                continue
            self.pieces[info.tensor, info.box] = torch.zeros(sizes(info.box), dtype=getattr(torch, tensor.dtype))
            self.infos[info.tensor] = tensor

    def piece(self, info: TensorInfo, box: Box) -> Tensor:
        """Return the piece of a tensor, as a program of this cut knows it, in the shape of its box.

        Where the program's graph divides the tensor's dimensions into other axes, it is a view of the piece in which
        these elements lie, without a gradient.
        """
        if not self.has_other_axes(info):
            return self.pieces[info.name, box]
        own = self.infos[info.name]
        ((_, own_box),) = regroup_box(box, info.sizes, own.sizes)
        for (name, outer), piece in self.pieces.items():
            if name == info.name and intersect(outer, own_box) == own_box:
                return piece.detach()[slices(relative(own_box, outer))].view(sizes(box))
        raise KeyError((info.name, box))

    def has_other_axes(self, info: TensorInfo) -> bool:
        """Whether the dimensions of a tensor are divided into other axes than those of the pieces."""
        return info.name in self.infos and self.infos[info.name].sizes != info.sizes

    @torch.no_grad()
    def load(self, value: Callable[[str], Tensor]) -> None:
        """Fill every piece from the whole tensors that `value(name)` returns; only the pieces are kept."""
        for (name, box), piece in self.masters().items():
            piece.copy_(value(name).reshape(self.infos[name].extents)[slices(box)])
        self.refresh()


def _reserve(elements: int, dtype: torch.dtype) -> Tensor:
    """Return zeros [n] that take memory only once they are written, where torch writes its own at once."""
    if not elements:
        return torch.zeros(0, dtype=dtype)
    memory = mmap.mmap(-1, elements * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype)
