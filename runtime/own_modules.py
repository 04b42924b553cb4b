"""`OwnModules`: the user's model in a worker, without values, for its blocks by hand; their states are operands."""

import torch
from torch import Tensor, nn

from ..partition.hand_block import OwnModule
from ..partition.hollow import empty_like, hollow


class OwnModules:
    """Blocks of a copy of `model`, which keeps its own Python state from step to step as plain torch has it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = hollow(model, _on_meta)
        self._blocks: dict[str, OwnModule] = {}

    def block(self, name: str, *, training: bool) -> OwnModule:
        """A block by its name, the whole model in the mode that is asked for."""
        if self._model.training != training:
            self._model.train(training)
        if name not in self._blocks:
            self._blocks[name] = OwnModule(self._model.get_submodule(name))
        return self._blocks[name]


def _on_meta(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return empty_like(tensor, "meta")
