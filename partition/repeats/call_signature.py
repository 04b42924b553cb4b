"""`CallSignature`: all that decides what a call of a layer does. Calls with equal signatures do the same.

These are the classes of its modules and the attributes that they read, its tensors without values and which of them
share memory, the arguments that are no tensors, torch's modes, and the global values that its code names.
"""

import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..operators.leaf_module import TRACED_CALL
from ..trace.python_state import read_generators
from ..trace.user_frames import is_users_file
from .frozen_value import CannotFreeze, Freezer, Identity
from .run_functions import find_functions
from .watched_call import UNWATCHED, WatchedCall

Modules = Mapping[str, nn.Module]  # a layer, and those within it by path
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"} | {TRACED_CALL}
_OF_FAKES = ("fake_mode", "fake_device", "constant", "pytype", "dispatch_keys", "real_tensor", "nonzero_memo")


@dataclass
class LayerCode:
    """What calls of a group of layers are known to read. inside: attributes by path within a layer and name.

    outside: attributes of other modules. code: the functions that ran, with their globals.
    """

    inside: set[tuple[str, str]] = field(default_factory=set)
    outside: dict[tuple[int, str], nn.Module] = field(default_factory=dict)
    code: dict[CodeType, Mapping[str, Any]] = field(default_factory=dict)
    # Found once for all the code, as that takes long.
    _names: Sequence[str] | None = field(default=None, init=False, repr=False)
    _functions: Sequence[FunctionType] | None = field(default=None, init=False, repr=False)

    def learn(self, call: WatchedCall, paths: Mapping[int, str]) -> bool:
        """Add what a call read, and return whether nothing of it was new. paths: of the layer's modules, by id."""
        inside = {(paths[number], name) for number, name in call.reads if number in paths}
        outside = {read: module for read, module in call.reads.items() if read[0] not in paths}
        known = inside <= self.inside and outside.keys() <= self.outside.keys() and call.code.keys() <= self.code.keys()
        self.inside |= inside
        self.outside |= outside
        if not call.code.keys() <= self.code.keys():
            self.code |= call.code
            self._names = self._functions = None
        return known

    def list_names(self) -> Sequence[str]:
        """Return the names by which this code may reach global values; one may also be text, as in getattr."""
        if self._names is None:
            texts = {text for one in self.code for text in one.co_consts if isinstance(text, str)}
            named = {name for one in self.code for name in one.co_names}
            self._names = sorted(named | {text for text in texts if text.isidentifier()})
        return self._names

    def list_functions(self, module: nn.Module) -> Sequence[FunctionType]:
        """Return the functions of this code; CannotFreeze where one is not found. module: any of the like layers."""
        if self._functions is None:
            self._functions = find_functions(module, self.code)
        return self._functions


@dataclass(frozen=True)
class CallSignature:
    """decisive: what is compared. operands: the layer's parameters and buffers, then the tensors of its arguments."""

    decisive: Hashable
    operands: tuple[Tensor, ...]
    states: int  # how many operands are parameters and buffers

    def is_same(self, other: "CallSignature") -> bool:
        """Whether it is the signature of the same call: of the same tensors, too."""
        pairs = zip(self.operands, other.operands, strict=False)
        return self.decisive == other.decisive and all(one is two for one, two in pairs)


def sign_call(module: nn.Module, args: Any, kwargs: Any, code: LayerCode, modes: Hashable) -> CallSignature:
    """Return the signature of a call; raise CannotFreeze where something that it reads may change unseen.

    code: what such calls are known to read. modes: torch's, see `describe_modes`.
    """
    modules = dict(module.named_modules())
    freezer = Freezer(list_paths(modules))
    form = sign_form(modules, args, kwargs, freezer, modes)
    known = form.decisive, freeze_reads(modules, code, freezer), freeze_globals(modules, code, freezer)
    return replace(form, decisive=known)


def sign_form(
    modules: Modules, args: Any, kwargs: Any, freezer: Freezer, modes: Hashable, *, objects: bool = False
) -> CallSignature:
    """Return the signature of a call but for what it reads by names. objects: let one in the arguments be itself."""
    operands = _list_states(modules)
    states = len(operands)
    structure = _describe_arguments((args, kwargs), operands, objects=objects)
    positions = {number: i for i, number in enumerate(operands)}
    decisive = (
        structure.replace_ids(positions) if isinstance(structure, _Leaves) else structure,
        tuple(_describe_module(path, inner, positions) for path, inner in modules.items()),
        _describe_tensors(list(operands.values()), freezer),
        modes,
    )
    return CallSignature(decisive, tuple(operands.values()), states)


def list_operands(module: nn.Module, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the operands of a call as its signature has them."""
    operands = _list_states(dict(module.named_modules()))
    _describe_arguments((args, kwargs), operands, objects=True)
    return list(operands.values())


def _list_states(modules: Modules) -> dict[int, Tensor]:
    tables = [inner._parameters for inner in modules.values()] + [inner._buffers for inner in modules.values()]
    return {id(tensor): tensor for table in tables for tensor in table.values() if tensor is not None}


def list_argument_tensors(args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors among the arguments of a call, in the order that they have as operands."""
    operands = dict[int, Tensor]()
    _describe_arguments((args, kwargs), operands, objects=True)
    return list(operands.values())


def list_paths(modules: Modules) -> dict[int, str]:
    """Return the paths of the modules of a layer by id."""
    return {id(inner): path for path, inner in modules.items()}


class ChangingArgument(CannotFreeze):
    """A call gets an object, which it may change. kind: its class."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"an argument is a {kind}")
        self.kind = kind


class _Leaves:
    """Arguments with tensors by id."""

    def __init__(self, structure: Any) -> None:
        self._structure = structure

    def replace_ids(self, positions: Mapping[int, int]) -> Hashable:
        """Return the arguments with tensors by position."""

        def replace(one: Any) -> Hashable:
            kind, value = one
            if kind is Tensor:
                return "tensor", positions[value]
            return (kind, tuple(map(replace, value))) if kind in (tuple, list) else (kind, value)

        return replace(self._structure)


def _describe_arguments(arguments: Any, operands: dict[int, Tensor], *, objects: bool = False) -> _Leaves:
    """Describe nested arguments, and add the tensors among them to `operands`. objects: see `sign_form`."""
    freezer, around = Freezer({}), set[int]()

    def describe(value: Any) -> tuple[Any, Any]:
        if type(value) not in (tuple, list, dict):
            return describe_leaf(value)
        if id(value) in around:
            raise CannotFreeze("it holds itself")
        around.add(id(value))
        held = value if type(value) is not dict else [one for pair in value.items() for one in pair]
        described = [describe(one) for one in held]
        around.remove(id(value))
        return (tuple, [(str, "dict"), *described]) if type(value) is dict else (type(value), described)

    def describe_leaf(value: Any) -> tuple[Any, Any]:
        if isinstance(value, Tensor):
            # A tensor with values could be looked into.
            if not isinstance(value, FakeTensor) or value.constant is not None:
                raise CannotFreeze("a tensor with values")
            operands.setdefault(id(value), value)
            return Tensor, id(value)
        if isinstance(value, nn.Module) or callable(value):
            raise CannotFreeze("code in an argument")
        if getattr(value, "__dict__", None) is not None:
            if objects:
                return type(value), Identity(value)
            raise ChangingArgument(type(value).__name__)
        return type(value), freezer.freeze(value)

    return _Leaves(describe(arguments))


def _describe_module(path: str, module: nn.Module, positions: Mapping[int, int]) -> Hashable:
    if any(getattr(module, hooks) for hooks in _HOOKS):
        raise CannotFreeze("a hook")
    tables = (module._parameters, module._buffers)
    return (
        path,
        type(module),
        tuple((name, None if t is None else positions[id(t)]) for table in tables for name, t in table.items()),
        tuple(name for name, inner in module._modules.items() if inner is not None),
    )


def _describe_tensors(tensors: Sequence[Tensor], freezer: Freezer) -> Hashable:
    """Describe tensors without their values; those that share memory have the same number."""
    memories: dict[int, int] = {}
    return tuple(_describe_tensor(tensor, memories, freezer) for tensor in tensors)


def _describe_tensor(tensor: Tensor, memories: dict[int, int], freezer: Freezer) -> Hashable:
    if tensor.layout is not torch.strided:
        raise CannotFreeze("a sparse tensor")
    if not all(type(size) is int for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset())):
        raise CannotFreeze("a tensor whose size depends on data")
    storage = tensor.untyped_storage()
    set_by_user = {k: v for k, v in vars(tensor).items() if k not in _OF_FAKES and not k.startswith("_")}
    return (
        type(tensor),
        isinstance(tensor, nn.Parameter),
        memories.setdefault(storage._cdata, len(memories)),
        storage.nbytes(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.device,
        (tensor.requires_grad, tensor.is_leaf, tensor._is_view(), tensor.is_conj(), tensor.is_neg()),
        tuple((name, freezer.freeze(value)) for name, value in set_by_user.items()),
    )


def describe_modes() -> Hashable:
    """Describe what torch does with operators at this moment, and from where Python and numpy draw."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.math_sdp_enabled(),  # type: ignore[no-untyped-call]
        tuple([id(mode) for mode in _get_current_function_mode_stack() if mode is not UNWATCHED]),  # type: ignore[no-untyped-call]
        tuple(map(id, _get_current_dispatch_mode_stack())),
        hash(read_generators()),
    )


def freeze_reads(modules: Modules, code: LayerCode, freezer: Freezer) -> tuple[tuple[Hashable, str, Hashable], ...]:
    """Freeze the attributes that calls read, as far as they are no parameters, buffers and submodules.

    Each is a path within the layer, or the id of another module, with name and value.
    """
    inside = [(path, name, modules[path]) for path, name in sorted(code.inside) if path in modules]
    outside = [(id(other), name, other) for (_, name), other in code.outside.items()]
    return tuple(
        (where, name, _freeze_attribute(owner, name, freezer))
        for where, name, owner in (*inside, *outside)
        if name not in _OF_TORCH and not name.startswith("__")
    )


def _freeze_attribute(owner: nn.Module, name: str, freezer: Freezer) -> Hashable:
    """Freeze an attribute of a module or of its class."""
    own = vars(owner)
    if name in own:
        return freezer.freeze(own[name])
    if any(name in own[table] for table in ("_parameters", "_buffers", "_modules")):
        return "registered"
    found = next((vars(one)[name] for one in type(owner).__mro__ if name in vars(one)), None)
    return freezer.freeze(found)


def freeze_globals(modules: Modules, code: LayerCode, freezer: Freezer) -> Hashable:
    """Freeze the values that the functions of a layer may reach by names, besides their own and their arguments."""
    names = code.list_names()
    spaces, met = [(space, one.co_names) for one, space in code.code.items()], dict[int, int]()
    found = [_freeze_named(space[name], names, freezer, met) for space, own in spaces for name in own if name in space]
    for function in code.list_functions(modules[""]):
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        held = (*cells, function.__defaults__, function.__kwdefaults__, vars(function))
        found += [freezer.freeze(value) for value in held]
    classes = dict.fromkeys(kind for inner in modules.values() for kind in type(inner).__mro__)
    found += [_freeze_named(kind, names, freezer, met) for kind in classes]
    return tuple(found)


def _freeze_named(value: Any, names: Sequence[str], freezer: Freezer, met: dict[int, int]) -> Hashable:
    """Freeze a global value; of a source file or a class of the model's code, what its names lead to, and so on.

    met: numbers of those that were met before, by id.
    """
    if not _is_users(value):
        return freezer.freeze(value)
    if id(value) in met:
        return "met", met[id(value)]
    met[id(value)] = len(met)
    spaces = [vars(one) for one in reversed(value.__mro__)] if isinstance(value, type) else [vars(value)]
    held = {name: one for space in spaces for name, one in space.items()}
    found = [(name, held[name]) for name in names if name in held]
    return Identity(value), tuple((name, _freeze_named(one, names, freezer, met)) for name, one in found)


def _is_users(value: Any) -> bool:
    """Whether a value is a source file or a class of the model's code. A notebook's is of no file."""
    module = sys.modules.get(value.__module__) if isinstance(value, type) else value
    if not isinstance(module, ModuleType):
        return False
    file = getattr(module, "__file__", None)
    return is_users_file(file) if file is not None else module.__name__ == "__main__"
