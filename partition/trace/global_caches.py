"""Takes fake tensors out of the caches that a model's code has outside of the model, when a run without data ends.

A table that a function under `functools.lru_cache` makes, or one in a dictionary of a source file, outlives the run in
which it was made. The next run, with data maybe, would find a tensor without values there.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import SUPPORTED_NODES, tree_leaves

from .user_frames import is_users_file


@contextlib.contextmanager
def keep_global_caches(code: Iterable[Any]) -> Iterator[None]:
    """When it ends, empty caches of functions that were filled since it began, and restore globals with fake tensors.

    code: objects of the classes, and the functions, that are run. The files that are looked at are those of their
    packages, and those in the same folders.
    """
    spaces = _find_namespaces(code)
    before = [{name: _copy(value) for name, value in _list_globals(space)} for space in spaces]
    try:
        yield
    finally:
        for space, old in zip(spaces, before, strict=True):
            _restore(space, old)


def _find_namespaces(code: Iterable[Any]) -> list[Any]:
    """Return the source files that belong to some code, as modules, and the classes that they define."""
    own = {getattr(one, "__module__", "") for one in code}
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in own}
    users = {name: folder for name, file in files.items() if file and (folder := _find_users_folder(file)) is not None}
    packages, folders = {name.partition(".")[0] for name in users}, set(users.values())
    spaces = list[Any]()
    for name, module, folder in _list_users_modules(tuple(map(id, sys.modules.values()))):
        if folder in folders or name.partition(".")[0] in packages:
            classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
            spaces += [module, *classes]
    return spaces


@functools.lru_cache(1)  # thousands of modules would be looked at for every trace
def _list_users_modules(loaded: tuple[int, ...]) -> list[tuple[str, ModuleType, str]]:
    """Return what is no library, of all that is loaded: name, module and folder. loaded: the ids of the modules."""
    found = list[tuple[str, ModuleType, str]]()
    for name, module in list(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        folder = _find_users_folder(file) if file else None
        if folder is not None and vars(module).get("__name__") == name:
            found.append((name, module, folder))
    return found


def _find_users_folder(file: str) -> str | None:
    return os.path.dirname(file) if is_users_file(file) else None


def _list_globals(space: Any) -> list[tuple[str, Any]]:
    """Return what a module or class holds; not what it has of Python's own, which every module has."""
    return [item for item in list(vars(space).items()) if item[0] != "__builtins__"]  # other threads may add some


def _copy(value: Any) -> Any:
    """Return a copy of a container, how often a cached function was computed, and anything else as it is."""
    if isinstance(value, functools._lru_cache_wrapper):
        return value.cache_info().misses
    return value.copy() if type(value) in (dict, list, set) else value


def _restore(space: Any, before: Mapping[str, Any]) -> None:
    for name, value in _list_globals(space):
        if isinstance(value, functools._lru_cache_wrapper):
            # Left alone where nothing was added: what a user's program has computed before may have taken it long.
            if value.cache_info().misses != before.get(name):
                value.cache_clear()
        elif _holds_fake(value):
            old = before.get(name)
            if isinstance(value, dict) and isinstance(old, dict):
                value.clear()
                value.update(old)
            elif isinstance(value, list) and isinstance(old, list):
                value[:] = old
            else:
                setattr(space, name, old)


def _holds_fake(value: Any) -> bool:
    """Whether a global is a fake tensor, or a container that has one within."""
    return isinstance(value, FakeTensor) or (type(value) in (dict, list, tuple) and _has_fake_within(value))


def _has_fake_within(value: Any) -> bool:
    kind = type(value)
    if kind is dict or kind is list or kind is tuple:  # most are, and large tables of plain values are looked through
        return any(map(_has_fake_within, list(value.values() if kind is dict else value)))
    if kind in SUPPORTED_NODES or isinstance(value, tuple):  # as torch knows them: namedtuples, say
        return any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(value))
    return isinstance(value, FakeTensor)
