"""`OwnModules`: the user's model in a worker, without values, for its blocks by hand; their states are operands."""

from collections.abc import Callable, Sequence
from typing import Self

from torch import Tensor, nn

from ...partition.operators.leaf_module import BLOCK, OwnModule
from ...partition.ir.empty_copy import empty_like, hollow
from .program import Program


class OwnModules:
    """Blocks of a copy of `model`, which keeps its own Python state from step to step as in plain torch."""

    def __init__(self, model: nn.Module) -> None:
        self._model = hollow(model, _on_meta)
        self._blocks: dict[str, OwnModule] = {}

    @classmethod
    def where_needed(cls, programs: Sequence[Program], model: Callable[[], nn.Module]) -> Self | None:
        """Those of `model()` where a program has blocks by hand, else None."""
        needed = any(op.target == BLOCK for program in programs for op in program.ops.values())
        return cls(model()) if needed else None

    def block(self, name: str, *, training: bool) -> OwnModule:
        """A block by its name, the whole model in the mode that is asked for."""
        if self._model.training != training:
            self._model.train(training)
        if name not in self._blocks:
            self._blocks[name] = OwnModule(self._model.get_submodule(name))
        return self._blocks[name]


def _on_meta(tensor: Tensor) -> Tensor:
    return empty_like(tensor, "meta")
