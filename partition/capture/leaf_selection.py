"""Which modules of a model are blocks by hand: those whose qualified name matches a glob."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from ...errors import BadInput

NEAR = 3


@dataclass(frozen=True)
class Chosen:
    """names: the modules, in the model's order. notes: what the user should know of the globs."""

    names: tuple[str, ...]
    notes: tuple[str, ...]


def chosen(model: nn.Module, globs: Sequence[str]) -> Chosen:
    """The outermost modules that match; BadInput, with names that are near, where a glob matches none.

    `*` stands for any characters, dots included. A module under several names goes by its first.
    """
    first: dict[int, str] = {}
    names = dict[str, nn.Module]()
    for name, module in model.named_modules(remove_duplicate=False):
        first.setdefault(id(module), name)
        if name and callable_(module):
            names[name] = module
    matched = {glob: [name for name in names if fnmatchcase(name, glob)] for glob in globs}
    for glob in globs:
        if not matched[glob]:
            raise _no_match(model, glob, list(names))
    known = dict.fromkeys(first[id(names[name])] for found in matched.values() for name in found)
    outermost = [name for name in known if not any(inside(name, other) for other in known)]
    order = [name for name, _ in model.named_modules() if name in outermost]
    notes = []
    for glob, found in matched.items():
        within = [first[id(names[name])] for name in found]
        if not set(within) & set(outermost):
            around = next(other for other in outermost if inside(within[0], other))
            notes.append(f"--blocks {glob!r} changes nothing: {within[0]} is part of the block {around}")
    return Chosen(tuple(order), tuple(notes))


def inside(name: str, other: str) -> bool:
    """Whether a module is within another, by their names."""
    return name.startswith(other + ".")


def callable_(module: nn.Module) -> bool:
    """Whether a module can be called; a list of modules cannot."""
    return getattr(type(module), "forward", None) is not nn.Module.forward or "forward" in vars(module)


def _no_match(model: nn.Module, glob: str, names: Sequence[str]) -> BadInput:
    lists = {name for name, module in model.named_modules() if name and not callable_(module)}
    held = next((name for name in sorted(lists) if fnmatchcase(name, glob)), None)
    if held is not None:
        return BadInput(
            "E325",
            f"--blocks {glob!r} names {held}, which only holds modules and is never called itself",
            fix=f"--blocks '{held}.*'",
        )
    near = difflib.get_close_matches(glob, names, n=NEAR, cutoff=0.4) or list(names[:NEAR])
    said = f"near it: {', '.join(near)}" if near else "it has no modules"
    return BadInput(
        "E325", f"--blocks {glob!r} matches no module of the model; {said}", fix=f"--blocks '{near[0]}'" if near else ""
    )


def glob_for(model: nn.Module, name: str) -> str:
    """A glob for a module and its like at the same place of other layers: `layers.*.gate` for layers.0.gate.

    Of the numbers in the name as many as possible become `*`, so long as all that it names are of one class.
    """
    kind = type(model.get_submodule(name))
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    for kept in (set[int](), *({i} for i in reversed(numbers)), set(numbers)):
        glob = ".".join("*" if i in numbers and i not in kept else part for i, part in enumerate(parts))
        found = chosen(model, [glob]).names
        if len(found) > 1 and {type(model.get_submodule(other)) for other in found} == {kind}:
            return glob
    return name
