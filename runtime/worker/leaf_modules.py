"""`LeafModules`: the user's model in a worker, without values, whose leaf modules are called with their states."""

from collections.abc import Callable, Sequence
from typing import Self

from torch import Tensor, nn

from ...partition.ir.empty_copy import empty_copy, empty_like
from ...partition.operators.leaf_module import LEAF_MODULE, LeafModule
from .program import Program


class LeafModules:
    """The leaf modules of a copy of `model`, which keeps its Python state from step to step as in plain torch."""

    def __init__(self, model: nn.Module) -> None:
        self._model = empty_copy(model, _on_meta)
        self._modules: dict[str, LeafModule] = {}

    @classmethod
    def where_needed(cls, programs: Sequence[Program], model: Callable[[], nn.Module]) -> Self | None:
        """Return the leaf modules of `model()` where a program calls any, else None."""
        needed = any(op.target == LEAF_MODULE for program in programs for op in program.ops.values())
        return cls(model()) if needed else None

    def get(self, name: str, *, training: bool) -> LeafModule:
        """Return a leaf module by its name, with the whole model in the mode that is asked for."""
        if self._model.training != training:
            self._model.train(training)
        if name not in self._modules:
            self._modules[name] = LeafModule(self._model.get_submodule(name))
        return self._modules[name]


def _on_meta(tensor: Tensor) -> Tensor:
    return empty_like(tensor, "meta")
