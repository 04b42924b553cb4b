"""A block by hand: a module of the model as one operator of the graph, whose inside is not traced.

Its operands are the module's parameters and buffers and the tensors it is called with; its results the tensors that it
returns, then the last values of the operands that it overwrites, then the state of torch's generator where it draws.
In a trace the operator is a mark only; a worker calls the user's own module.
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

from ..ir.arguments import decode
from ..ir.autocast import autocast
from ...errors import BadInput
from ..ir.random_ops import GENERATOR_BYTES, drawing
from ..ir.pytree import flatten

BLOCK = "cutset.block.default"
TRACED_CALL = "_call_impl"  # what `nn.Module.__call__` calls; in the traced copy of a model a block has its own

_LIBRARY = torch.library.Library("cutset", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "block(str name, Tensor[] operands, bool draws, int flops, str form) -> Tensor[]",
    tags=(torch.Tag.nondeterministic_seeded,),
)


class Shape(msgspec.Struct, frozen=True):
    """A tensor without its values. stride: in elements; dtype: "float32"."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    @property
    def described(self) -> str:
        """As an error says it."""
        return f"{self.dtype}{list(self.shape)}"


class Form(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a block is called and what it gives, as plain data.

    states: names, within the module, of the first operands. call: the nesting of (args, kwargs), as torch's pytree
    writes it; leaves: what stands in it, a tensor as {"tensor": position among the operands}. returns: the leaves of
    what it returns, a tensor as {"tensor": position among `tensors`}. tensors: results in order, those that it returns
    and then those that it overwrites; overwritten: positions of the latter among the operands.
    autocast: the dtype in which torch.autocast computes its inside, if it does.
    """

    states: tuple[str, ...]
    call: str
    leaves: tuple[Any, ...]
    returns: tuple[Any, ...]
    tensors: tuple[Shape, ...]
    overwritten: tuple[int, ...]
    autocast: str = ""


@functools.lru_cache(maxsize=1024)
def form_of(text: str) -> Form:
    """The form that stands among the arguments of the operator."""
    return msgspec.json.decode(text, type=Form)


@functools.lru_cache(maxsize=1024)
def _spec(text: str) -> TreeSpec:
    return treespec_loads(text)


def shape_of(tensor: Tensor) -> Shape:
    """What is known of a tensor without its values."""
    return Shape(tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch."))


def mark(name: str, operands: Sequence[Tensor], form: Form, *, draws: bool, flops: int) -> list[Tensor]:
    """The operator in a trace: results without values."""
    text = msgspec.json.encode(form).decode()
    results: list[Tensor] = torch.ops.cutset.block(name, list(operands), draws, flops, text)
    return results


@torch.library.register_fake("cutset::block", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _results(name: str, operands: Sequence[Tensor], draws: bool, flops: int, form: str) -> list[Tensor]:
    device = operands[0].device if operands else torch.device("cpu")
    shapes = [*form_of(form).tensors, *([Shape((GENERATOR_BYTES,), (1,), "uint8")] if draws else [])]
    return [torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device=device) for s in shapes]


def _no_backward(context: Any, *gradients: Any) -> Any:
    raise AssertionError("a mark has no gradient")


# So that a trace knows which results carry a gradient.
torch.library.register_autograd("cutset::block", _no_backward, lib=_LIBRARY)


@register_flop_formula(torch.ops.cutset.block)
def _flops(name: Any, operands: Any, draws: Any, flops: int, form: Any, **rest: Any) -> int:
    return flops


# Calling -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Called:
    """What a call gave. last: every operand after it; changed: positions of those that are not what they were."""

    output: Any
    last: list[Tensor]
    changed: tuple[int, ...]


class OwnModule:
    """A module of the user's whose parameters and buffers are operands.

    They stay in it after a call, since a checkpointed part runs a second time in backward.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._places: dict[str, list[tuple[dict[str, Any], str]]] = {}
        first: dict[int, str] = {}
        for path, inner in module.named_modules():
            for table in (inner._parameters, inner._buffers):
                for key, tensor in table.items():
                    if tensor is not None:
                        name = first.setdefault(id(tensor), f"{path}.{key}".lstrip("."))
                        self._places.setdefault(name, []).append((table, key))

    @property
    def states(self) -> dict[str, Tensor]:
        """Parameters and buffers, a tied one under its first name."""
        return {name: places[0][0][places[0][1]] for name, places in self._places.items()}

    def call(self, states: Sequence[str], operands: Sequence[Tensor], args: Any, kwargs: Any) -> Called:
        """Call the module with the first operands as its states."""
        for name, tensor in zip(states, operands, strict=False):
            for table, key in self._places[name]:
                table[key] = tensor
        before = [tensor._version for tensor in operands]
        output = self.module(*args, **kwargs)
        now = self.states
        last = [*(now[name] for name in states), *operands[len(states) :]]
        pairs = enumerate(zip(operands, before, strict=True))
        changed = tuple(i for i, (tensor, old) in pairs if last[i] is not tensor or tensor._version != old)
        return Called(output, last, changed)


def run(module: OwnModule, arguments: Mapping[str, Any], noise: Tensor | None) -> list[Tensor]:
    """The results of the operator with these arguments. noise: the generator's state, where the block draws.

    BadInput where the block does what no trial run of it did.
    """
    name, form, operands = arguments["name"], form_of(arguments["form"]), arguments["operands"]
    if noise is not None:
        results, state = drawing(noise, lambda: _run(module, name, form, operands))
        return [*results, state]
    before = torch.get_rng_state()
    results = _run(module, name, form, operands)
    if not torch.equal(torch.get_rng_state(), before):
        raise _surprise(name, "draws random numbers, which it did not in its trial runs")
    return results


def _run(module: OwnModule, name: str, form: Form, operands: Sequence[Tensor]) -> list[Tensor]:
    held = [t.clone() if i in form.overwritten else t for i, t in enumerate(operands)]
    leaves = [held[leaf["tensor"]] if is_tensor(leaf) else decode(leaf, str) for leaf in form.leaves]
    args, kwargs = tree_unflatten(leaves, _spec(form.call))
    with autocast(form.autocast):
        called = module.call(form.states, held, args, kwargs)
    found = flatten(called.output)[0]
    more = sorted(set(called.changed) - set(form.overwritten))
    if more:
        raise _surprise(name, f"overwrites {operand_name(form, more[0])}, which it did not in its trial runs")
    returned = [leaf for leaf in found if isinstance(leaf, Tensor)]
    _demand_alike(name, form, found, returned)
    return [*returned, *(called.last[i] for i in form.overwritten)]


def _demand_alike(name: str, form: Form, leaves: Sequence[Any], returned: Sequence[Tensor]) -> None:
    count = len(form.tensors) - len(form.overwritten)
    wanted = [Shape(s.shape, (), s.dtype).described for s in form.tensors[:count]]
    found = [shape_of(t).described for t in returned]
    if wanted != found:
        said = ", ".join(found) or "no tensor"
        raise _surprise(name, f"gives {said}; in its trial runs it gave {', '.join(wanted) or 'no tensor'}")
    plain = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    expected = [decode(leaf, str) for leaf in form.returns if not is_tensor(leaf)]
    if plain != expected:
        raise _surprise(name, f"gives {plain} beside its tensors; in its trial runs it gave {expected}")


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf of a form stands for a tensor."""
    return isinstance(leaf, dict) and "tensor" in leaf


def operand_name(form: Form, position: int) -> str:
    """What an operand is, in words."""
    count = len(form.states)
    return f"its {form.states[position]}" if position < count else f"tensor {position - count} of its arguments"


def _surprise(name: str, what: str) -> BadInput:
    return BadInput(
        "E327",
        f"the block by hand {name} {what}",
        fix="write it so that this does not depend on data; or train it uncut, data parallel only, with --machines 1",
    )
