"""`KnownResult`: what an operator of a layer gives without data, made without asking torch how.

Where a layer does what the one before it did, all but the values of its tensors is known. torch takes most of the time
of a run without data to find it out anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from ..ir.empty_copy import make_fake
from ..trace.value_numbers import fills_memory, find_memory

_CPU = torch.device("cpu")
_NAMESPACES = ("aten", "prims")  # of operators that run no code of the model's


@dataclass(frozen=True)
class _KnownTensor:
    """A tensor that an operator gives. stride, offset: in elements. viewed: position of the operand that it views."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    viewed: int | None


@dataclass(frozen=True)
class KnownResult:
    """What an operator gives. kind: a tuple or list of tensors, or None where it is one tensor."""

    mode: FakeTensorMode
    tensors: Sequence[_KnownTensor]
    kind: type | None

    def make(self, args: Sequence[Any]) -> Any:
        """Return the result for operands that differ in nothing but values from those that it is known for."""
        made = [self._make_tensor(one, args) for one in self.tensors]
        return made[0] if self.kind is None else self.kind(made)

    def _make_tensor(self, known: _KnownTensor, args: Sequence[Any]) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            bare = torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device="meta")
            if known.viewed is not None:
                bare.set_(args[known.viewed].untyped_storage(), known.offset, known.shape, known.stride)
        return make_fake(bare, self.mode)


def find_known_result(func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> KnownResult | None:
    """Return what an operator gave, or None where another call may give something else for like operands."""
    if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES or func._schema.is_mutable:
        return None
    kind = None if isinstance(result, Tensor) else type(result)
    tensors: Sequence[Any] = (result,) if kind is None else result if kind in (tuple, list) else ()
    operands = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    if not tensors or not all(map(_is_ordinary, tensors)) or any(type(one) is not FakeTensor for one in operands):
        return None
    positions = {find_memory(one): i for i, one in enumerate(args) if isinstance(one, Tensor)}
    taken, known = set(map(find_memory, operands)), []
    for tensor in tensors:
        memory = find_memory(tensor)
        viewed = positions.get(memory)
        if any(one is tensor for one in operands) or (viewed is None and (memory in taken or not fills_memory(tensor))):
            return None
        taken.add(memory)
        known.append(_KnownTensor(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, viewed))
    return KnownResult(tensors[0].fake_mode, known, kind)


def _is_ordinary(tensor: Any) -> bool:
    """Whether a tensor is a dense one of known size without values."""
    if type(tensor) is not FakeTensor or tensor.constant is not None or tensor.device != _CPU or tensor.requires_grad:
        return False
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return False
    return all(type(size) is int for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))
