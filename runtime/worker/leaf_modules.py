"""`LeafModules`: the user's step in a worker, without values, whose leaf modules are called with their states."""

from collections.abc import Callable, Sequence
from typing import Self

from torch import Tensor

from ...partition.ir.empty_copy import empty_copy, empty_like
from ...partition.operators.leaf_module import LEAF_MODULE, LeafModule
from ...partition.operators.step_module import MODEL, STEP, StepModule
from .program import Program


class LeafModules:
    """The leaf modules of a copy of a step, which keeps its Python state from step to step as in plain torch."""

    def __init__(self, step: StepModule) -> None:
        copied = empty_copy(step, _on_meta)
        assert isinstance(copied, StepModule)
        self._step = copied
        self._modules: dict[tuple[str, bool], LeafModule] = {}

    @classmethod
    def where_needed(cls, programs: Sequence[Program], step: Callable[[], StepModule]) -> Self | None:
        """Return the leaf modules of `step()` where a program calls any, else None."""
        needed = any(op.target == LEAF_MODULE for program in programs for op in program.ops.values())
        return cls(step()) if needed else None

    def get(self, name: str, *, training: bool) -> LeafModule:
        """Return a leaf module by its name, with the whole step in the mode that is asked for."""
        if self._step.training != training:
            self._step.train(training)
        name = MODEL if name == STEP and not training else name  # where a model is evaluated, there is no loss
        if (name, training) not in self._modules:
            self._modules[name, training] = LeafModule(self._step.part(name))
        return self._modules[name, training]


def _on_meta(tensor: Tensor) -> Tensor:
    return empty_like(tensor, "meta")
