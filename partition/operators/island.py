"""An island: operators whose sizes depend on data, which are one operator of the graph.

What lies between `nonzero`, say, and the next tensor of a fixed shape cannot be cut, since nobody knows how large it
will be. An island lists these operators as plain data; whoever runs it calls them one after the other.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ...errors import BadInput
from ..ir.arguments import call_operator, decode, find_tensors
from ..ir.random_ops import GENERATOR_BYTES, run_with_generator
from .leaf_module import TensorSpec

ISLAND = "cutset.island.default"

# Functions of numbers, such as of the size of a tensor; by them a trace says how sizes follow from each other.
NUMBER_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    f"number.{function.__name__}": function
    for function in (
        *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.neg),
        *(operator.pow, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        *(operator.and_, operator.or_, operator.pos, operator.lshift, operator.rshift),
        *(math.floor, math.ceil, math.trunc, math.sqrt, round, abs),
        *(torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_float, torch.sym_int, torch.sym_ite),
    )
}

_LIBRARY = torch.library.Library("cutset", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "island(Tensor[] operands, bool draws, int flops, str form) -> Tensor[]",
    tags=(torch.Tag.nondeterministic_seeded,),
)


class IslandStep(msgspec.Struct, frozen=True):
    """One operator of an island. target: an operator of torch, or one of `NUMBER_FUNCTIONS`.

    arguments: by name, as plain data (see `ir.arguments`); a number that is computed stands there as a tensor does.
    outputs: names of the tensors or numbers that it returns.
    """

    target: str
    arguments: dict[str, Any]
    outputs: tuple[str, ...]


class IslandForm(msgspec.Struct, frozen=True):
    """An island as plain data. operands: names of the tensors that it reads, in order.

    results: names of what it returns; tensors: what is known of these without their values.
    """

    steps: tuple[IslandStep, ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    tensors: tuple[TensorSpec, ...]


def encode_form(form: IslandForm) -> str:
    """Return a form as JSON, as it stands among the arguments of the operator."""
    return msgspec.json.encode(form).decode()


@functools.lru_cache(maxsize=1024)
def decode_form(text: str) -> IslandForm:
    """Return the form that is among the arguments of the operator, as JSON."""
    return msgspec.json.decode(text, type=IslandForm)


def run_island(arguments: Mapping[str, Any], generator_state: Tensor | None) -> list[Tensor]:
    """Run the operator and return its results.

    generator_state: torch's generator is put in it, where the island draws; the last result is its state afterwards.
    """
    form, operands = decode_form(arguments["form"]), arguments["operands"]
    if generator_state is None:
        return run_steps(form, operands)
    results, state = run_with_generator(generator_state, lambda: run_steps(form, operands))
    return [*results, state]


def run_steps(form: IslandForm, operands: Sequence[Tensor]) -> list[Tensor]:
    """Run the operators of an island and return its results, without the state of the generator."""
    values: dict[str, Any] = dict(zip(form.operands, operands, strict=True))
    last = {name: i for i, step in enumerate(form.steps) for name in find_tensors(step.arguments).values()}
    kept = {*form.results, *form.operands}
    for i, step in enumerate(form.steps):
        arguments = {name: decode(value, values.__getitem__) for name, value in step.arguments.items()}
        values |= zip(step.outputs, _call(step.target, arguments), strict=True)
        for name in {*step.outputs, *find_tensors(step.arguments).values()} - kept:
            if last.get(name, i) <= i:
                del values[name]
    results: list[Tensor] = [values[name] for name in form.results]
    _demand_traced_sizes(form, results)
    return results


def _demand_traced_sizes(form: IslandForm, results: Sequence[Tensor]) -> None:
    """Refuse a result of another size than in the trace, which may have taken a dynamic size for fixed."""
    for spec, result in zip(form.tensors, results, strict=True):
        if tuple(result.shape) != spec.shape:
            targets = ", ".join(dict.fromkeys(step.target for step in form.steps))
            raise BadInput(
                "E327",
                f"an island of {targets} gives {list(result.shape)}, and gave {spec.described} in the trace",
                fix="let them end in a fixed size; or train it uncut, data parallel only, with --machines 1",
            )


def _call(target: str, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the tensors and numbers that an operator or a function of numbers returns."""
    if target in NUMBER_FUNCTIONS:
        return [NUMBER_FUNCTIONS[target](*arguments.values())]
    result = call_operator(target, arguments)
    return [part for part in result if part is not None] if isinstance(result, tuple | list) else [result]


@torch.library.register_fake("cutset::island", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _empty_results(operands: Sequence[Tensor], draws: bool, flops: int, form: str) -> list[Tensor]:
    specs = [*decode_form(form).tensors, *([TensorSpec((GENERATOR_BYTES,), (1,), "uint8")] if draws else [])]
    device = operands[0].device if operands else torch.device("cpu")
    return [torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device=device) for s in specs]


@register_flop_formula(torch.ops.cutset.island)
def _flops(operands: Any, draws: Any, flops: int, form: Any, **rest: Any) -> int:
    return flops
