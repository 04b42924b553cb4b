"""Blocks by hand in the copy of a model that is traced: a call of one becomes one operator.

What overwritten operands are in the end is copied back into them, in sight of the trace.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from ..ir.autocast import autocast_now
from ...errors import BadInput
from .gradient_leaves import leaves_of_gradient, outside
from ..operators.leaf_module import TRACED_CALL, OwnModule, is_tensor, mark, shape_of
from .leaf_trial import WAY_OUT, Request, Trial, trial


def mark_blocks(traced: nn.Module, original: nn.Module, names: Sequence[str]) -> None:
    """Make the modules `names` of `traced` blocks by hand. It is the copy without values of `original`."""
    tensors = [*traced.parameters(), *traced.buffers()]
    for name in names:
        block = _Block(name, OwnModule(traced.get_submodule(name)), _values(original.get_submodule(name)), tensors)
        setattr(block.module.module, TRACED_CALL, block)


class _Block:
    """Takes the place of a call. own: values of the module's states; tensors: all states of the model."""

    def __init__(self, name: str, module: OwnModule, own: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> None:
        self.name, self.module = name, module
        self._own, self._tensors = own, tensors
        self._trials: dict[Any, Trial] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        if not torch.compiler.is_exporting():
            self._demand_no_outside(leaves)
        operands = list(self.module.states.values())
        positions = {id(tensor): i for i, tensor in enumerate(operands)}
        for leaf in leaves:
            if isinstance(leaf, Tensor) and id(leaf) not in positions:
                positions[id(leaf)] = len(operands)
                operands.append(leaf)
        given = [{"tensor": positions[id(leaf)]} if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        found = self._trial(Request(self.name, self.module, operands, given, spec, self._own, self._tensors))
        form = found.form
        results = mark(self.name, operands, form, draws=found.draws, flops=found.flops)
        count = len(form.tensors) - len(form.overwritten)
        for i, last in zip(form.overwritten, results[count:], strict=False):
            operands[i].copy_(last.detach() if i < len(form.states) else last)
        returns = [results[leaf["tensor"]] if is_tensor(leaf) else leaf for leaf in found.returns]
        return found.rebuild(returns)

    def _trial(self, request: Request) -> Trial:
        """The trial of a call; that of an equal call where there was one."""
        shapes = tuple(shape_of(tensor) for tensor in request.operands)
        key = (repr(request.spec), shapes, repr(request.leaves), autocast_now())
        if key not in self._trials:
            self._trials[key] = trial(request)
        return self._trials[key]

    def _demand_no_outside(self, leaves: Sequence[Any]) -> None:
        """A gradient must not flow through an argument to a tensor that is no parameter: it would be lost."""
        ends = [end for leaf in leaves if isinstance(leaf, Tensor) for end in leaves_of_gradient(leaf)]
        if any(outside(end, self._tensors) for end in ends):
            raise BadInput(
                "E326",
                f"the block by hand {self.name} is called with a tensor that asks for a gradient and is no parameter",
                fix=f"make it an nn.Parameter, or ask for the gradient within the block; or {WAY_OUT}",
            )


def _values(module: nn.Module) -> Mapping[str, Tensor]:
    """The states of a module that have values."""
    return {name: tensor for name, tensor in OwnModule(module).states.items() if tensor.device.type != "meta"}
