"""A leaf module: a module of the model that is one operator of the graph, as in torch.fx, its inside not traced.

The operator's operands are the module's parameters and buffers and the tensors that it is called with. Its results are
the tensors that the module returns, then the last values of the operands that it overwrites, then the state of torch's
generator where it draws. In a trace the operator computes nothing; a worker calls the user's module.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_unflatten, treespec_loads
from torch.utils.flop_counter import register_flop_formula

from ...errors import BadInput
from ..ir.arguments import decode
from ..ir.autocast import autocast_context
from ..ir.pytree import flatten
from ..ir.random_ops import GENERATOR_BYTES, run_with_generator

LEAF_MODULE = "cutset.leaf_module.default"
TRACED_CALL = "_call_impl"  # what `nn.Module.__call__` calls; in the traced copy of a model a leaf module has its own

_LIBRARY = torch.library.Library("cutset", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "leaf_module(str name, Tensor[] operands, bool draws, int flops, str form) -> Tensor[]",
    tags=(torch.Tag.nondeterministic_seeded,),
)


class TensorSpec(msgspec.Struct, frozen=True):
    """A tensor without its values. stride: in elements; dtype: such as "float32"."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    @property
    def described(self) -> str:
        """The tensor in an error message, such as "float32[2, 3]"."""
        return f"{self.dtype}{list(self.shape)}"


class LeafForm(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a leaf module is called and what it returns, as plain data.

    states: names, within the module, of the parameters and buffers that are the first operands. call: the structure of
    (args, kwargs), as torch's pytree writes it. leaves: the leaves of that structure, a tensor as {"tensor": position
    among the operands}. returns: the leaves of what it returns, a tensor as {"tensor": position among `tensors`}.
    tensors: the results in order, those that it returns before those that it overwrites. overwritten: positions of the
    latter among the operands. autocast: the dtype in which torch.autocast computes its inside; "" where it does not.
    """

    states: tuple[str, ...]
    call: str
    leaves: tuple[Any, ...]
    returns: tuple[Any, ...]
    tensors: tuple[TensorSpec, ...]
    overwritten: tuple[int, ...]
    autocast: str = ""


@functools.lru_cache(maxsize=1024)
def decode_form(text: str) -> LeafForm:
    """Return the form that is among the arguments of the operator, as JSON."""
    return msgspec.json.decode(text, type=LeafForm)


@functools.lru_cache(maxsize=1024)
def _spec(text: str) -> TreeSpec:
    return treespec_loads(text)


def tensor_spec(tensor: Tensor) -> TensorSpec:
    """Return what is known of a tensor without its values."""
    return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch."))


def trace_leaf_module(
    name: str, operands: Sequence[Tensor], form: LeafForm, *, draws: bool, flops: int
) -> list[Tensor]:
    """Enter the operator into a trace and return its results, which have no values."""
    text = msgspec.json.encode(form).decode()
    results: list[Tensor] = torch.ops.cutset.leaf_module(name, list(operands), draws, flops, text)
    return results


@torch.library.register_fake("cutset::leaf_module", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _empty_results(name: str, operands: Sequence[Tensor], draws: bool, flops: int, form: str) -> list[Tensor]:
    device = operands[0].device if operands else torch.device("cpu")
    shapes = [*decode_form(form).tensors, *([TensorSpec((GENERATOR_BYTES,), (1,), "uint8")] if draws else [])]
    return [torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device=device) for s in shapes]


def _refuse_backward(context: Any, *gradients: Any) -> Any:
    raise AssertionError("a leaf module in a trace has no gradient")


# It is registered so that a trace knows which results carry a gradient.
torch.library.register_autograd("cutset::leaf_module", _refuse_backward, lib=_LIBRARY)


@register_flop_formula(torch.ops.cutset.leaf_module)
def _flops(name: Any, operands: Any, draws: Any, flops: int, form: Any, **rest: Any) -> int:
    return flops


# Calling -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeafResult:
    """The result of a call. last: every operand after the call; changed: positions of those that the call overwrote."""

    output: Any
    last: list[Tensor]
    changed: tuple[int, ...]


class LeafModule:
    """A module of the user's whose parameters and buffers are operands.

    The operands stay in the module after a call, since an activation checkpoint runs it a second time in backward.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._slots_of: dict[str, list[tuple[dict[str, Any], str]]] = {}
        first: dict[int, str] = {}
        for path, inner in module.named_modules():
            for table in (inner._parameters, inner._buffers):
                for key, tensor in table.items():
                    if tensor is not None:
                        name = first.setdefault(id(tensor), f"{path}.{key}".lstrip("."))
                        self._slots_of.setdefault(name, []).append((table, key))

    @property
    def states(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, a tied one under its first name."""
        return {name: slots[0][0][slots[0][1]] for name, slots in self._slots_of.items()}

    def call(self, states: Sequence[str], operands: Sequence[Tensor], args: Any, kwargs: Any) -> LeafResult:
        """Call the module with the first operands as its `states`, which are names of parameters and buffers."""
        for name, tensor in zip(states, operands, strict=False):
            for table, key in self._slots_of[name]:
                table[key] = tensor
        before = [tensor._version for tensor in operands]
        output = self.module(*args, **kwargs)
        now = self.states
        last = [*(now[name] for name in states), *operands[len(states) :]]
        pairs = enumerate(zip(operands, before, strict=True))
        changed = tuple(i for i, (tensor, old) in pairs if last[i] is not tensor or tensor._version != old)
        return LeafResult(output, last, changed)


def run_leaf_module(module: LeafModule, arguments: Mapping[str, Any], generator_state: Tensor | None) -> list[Tensor]:
    """Run the operator and return its results. generator_state: torch's generator is put in it, where the module draws.

    Raises BadInput where the module does what it did in no trial run.
    """
    name, form, operands = arguments["name"], decode_form(arguments["form"]), arguments["operands"]
    if generator_state is not None:
        results, state = run_with_generator(generator_state, lambda: _run(module, name, form, operands))
        return [*results, state]
    before = torch.get_rng_state()
    results = _run(module, name, form, operands)
    if not torch.equal(torch.get_rng_state(), before):
        raise _surprise(name, "draws random numbers, which it did not in its trial runs")
    return results


def _run(module: LeafModule, name: str, form: LeafForm, operands: Sequence[Tensor]) -> list[Tensor]:
    inputs = [t.clone() if i in form.overwritten else t for i, t in enumerate(operands)]
    leaves = [inputs[leaf["tensor"]] if is_tensor_leaf(leaf) else decode(leaf, str) for leaf in form.leaves]
    args, kwargs = tree_unflatten(leaves, _spec(form.call))
    with autocast_context(form.autocast):
        result = module.call(form.states, inputs, args, kwargs)
    outputs = flatten(result.output)[0]
    unexpected = sorted(set(result.changed) - set(form.overwritten))
    if unexpected:
        raise _surprise(name, f"overwrites {describe_operand(form, unexpected[0])}, which it did not in its trial runs")
    returned = [leaf for leaf in outputs if isinstance(leaf, Tensor)]
    _demand_as_in_trial(name, form, outputs, returned)
    return [*returned, *(result.last[i] for i in form.overwritten)]


def _demand_as_in_trial(name: str, form: LeafForm, leaves: Sequence[Any], returned: Sequence[Tensor]) -> None:
    count = len(form.tensors) - len(form.overwritten)
    expected = ", ".join(TensorSpec(s.shape, (), s.dtype).described for s in form.tensors[:count]) or "no tensor"
    actual = ", ".join(tensor_spec(t).described for t in returned) or "no tensor"
    if expected != actual:
        raise _surprise(name, f"returns {actual}; in its trial runs it returned {expected}")
    plain = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    plain_in_trial = [decode(leaf, str) for leaf in form.returns if not is_tensor_leaf(leaf)]
    if plain != plain_in_trial:
        raise _surprise(name, f"returns {plain} beside its tensors; in its trial runs it returned {plain_in_trial}")


def is_tensor_leaf(leaf: Any) -> bool:
    """Whether a leaf of a form stands for a tensor."""
    return isinstance(leaf, dict) and "tensor" in leaf


def describe_operand(form: LeafForm, position: int) -> str:
    """Describe an operand in an error message."""
    count = len(form.states)
    return f"its {form.states[position]}" if position < count else f"tensor {position - count} of its arguments"


def _surprise(name: str, what: str) -> BadInput:
    return BadInput(
        "E327",
        f"the leaf module {name} {what}",
        fix="write it so that this does not depend on data; or train it uncut, data parallel only, with --machines 1",
    )
