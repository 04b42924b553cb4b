"""Leaf modules in the copy of a model that is traced: a call of one becomes one operator.

The last values of overwritten operands are copied back into them as operators of the trace.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._pytree import tree_flatten

from ...errors import BadInput
from ..ir.autocast import current_autocast
from ..operators.leaf_module import TRACED_CALL, LeafModule, is_tensor_leaf, tensor_spec, trace_leaf_module
from ..operators.step_module import LOSS, StepModule
from .custom_gradients import find_gradient_leaves, is_outside
from .leaf_trial import WAY_OUT, LeafCall, LeafTrial, try_leaf_module

LeafTrials = dict[Any, LeafTrial]  # by what a leaf module was called with


def wrap_leaf_modules(
    traced: StepModule, original: StepModule, names: Sequence[str], trials: LeafTrials, batch: Mapping[int, Tensor]
) -> None:
    """Make leaf modules of the parts `names` of `traced`, which is an empty copy of `original`.

    trials: those of other copies, to which the ones of this copy are added. batch: values of the tensors of the batch,
    by id, with which trials are made, too.
    """
    tensors = [*traced.parameters(), *traced.buffers()]
    for name in names:
        if name == LOSS and traced.criterion is None:
            continue
        values = _values(original.part(name))
        leaf = _TracedLeaf(name, LeafModule(traced.part(name)), values, tensors, trials, batch)
        setattr(leaf.module.module, TRACED_CALL, leaf)


class _TracedLeaf:
    """Takes the place of a leaf module's call.

    values: of its states, where known; tensors: all states of the model; batch: as of `wrap_leaf_modules`.
    """

    def __init__(
        self,
        name: str,
        module: LeafModule,
        values: Mapping[str, Tensor],
        tensors: Sequence[Tensor],
        trials: LeafTrials,
        batch: Mapping[int, Tensor],
    ) -> None:
        self.name, self.module, self._batch = name, module, batch
        self._state_values, self._tensors, self._trials = values, tensors, trials

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        if get_proxy_mode() is None:
            self._demand_no_outside(leaves)
        operands = list(self.module.states.values())
        positions = {id(tensor): i for i, tensor in enumerate(operands)}
        for leaf in leaves:
            if isinstance(leaf, Tensor) and id(leaf) not in positions:
                positions[id(leaf)] = len(operands)
                operands.append(leaf)
        encoded = [{"tensor": positions[id(leaf)]} if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        trial = self._find_trial(
            LeafCall(
                self.name,
                self.module,
                operands,
                encoded,
                spec,
                self._state_values,
                self._tensors,
                {i: self._batch[id(tensor)] for i, tensor in enumerate(operands) if id(tensor) in self._batch},
            )
        )
        form = trial.form
        results = trace_leaf_module(self.name, operands, form, draws=trial.draws, flops=trial.flops)
        count = len(form.tensors) - len(form.overwritten)
        for i, last in zip(form.overwritten, results[count:], strict=False):
            operands[i].copy_(last.detach() if i < len(form.states) else last)
        returns = [results[leaf["tensor"]] if is_tensor_leaf(leaf) else leaf for leaf in trial.returns]
        return trial.rebuild(returns)

    def _find_trial(self, request: LeafCall) -> LeafTrial:
        """Return the trial of a call, or that of an equal call where there was one."""
        shapes = tuple(tensor_spec(tensor) for tensor in request.operands)
        key = (self.name, repr(request.spec), shapes, repr(request.leaves), current_autocast())
        if key not in self._trials:
            self._trials[key] = try_leaf_module(request)
        return self._trials[key]

    def _demand_no_outside(self, leaves: Sequence[Any]) -> None:
        """Refuse a gradient that flows through an argument to a tensor that is no parameter, where it would be lost."""
        ends = [end for leaf in leaves if isinstance(leaf, Tensor) for end in find_gradient_leaves(leaf)]
        if any(is_outside(end, self._tensors) for end in ends):
            raise BadInput(
                "E326",
                f"the leaf module {self.name} is called with a tensor that asks for a gradient and is no parameter",
                fix=f"make it an nn.Parameter, or ask for the gradient within the module; or {WAY_OUT}",
            )


def _values(module: nn.Module) -> Mapping[str, Tensor]:
    """Return the states of a module that have values."""
    return {name: tensor for name, tensor in LeafModule(module).states.items() if tensor.device.type != "meta"}
