"""Which modules of a model are leaf modules: those whose qualified name matches a glob."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from ...errors import BadInput
from ..operators.step_module import LOSS, MODEL, STEP

MAX_SUGGESTIONS = 3


@dataclass(frozen=True)
class LeafSelection:
    """Leaf modules. names: the modules, in the model's order; notes: what the user should know of the globs."""

    names: tuple[str, ...]
    notes: tuple[str, ...]


def select_leaf_modules(model: nn.Module, globs: Sequence[str]) -> LeafSelection:
    """Return the outermost modules that match; raise BadInput, suggesting similar names, where a glob matches none.

    `*` stands for any characters, dots included. A module under several names goes by its first. Of the parts of a
    step that are no submodule, the larger stand for the smaller, too.
    """
    if STEP in globs or MODEL in globs:
        return LeafSelection((STEP,) if STEP in globs else tuple(p for p in (MODEL, LOSS) if p in globs), ())
    if LOSS in globs:
        inner = select_leaf_modules(model, [glob for glob in globs if glob != LOSS])
        return LeafSelection((*inner.names, LOSS), inner.notes)
    first: dict[int, str] = {}
    names = dict[str, nn.Module]()
    for name, module in model.named_modules(remove_duplicate=False):
        first.setdefault(id(module), name)
        if name and is_callable(module):
            names[name] = module
    matches = {glob: [name for name in names if fnmatchcase(name, glob)] for glob in globs}
    for glob in globs:
        if not matches[glob]:
            raise _no_match(model, glob, list(names))
    known = dict.fromkeys(first[id(names[name])] for group in matches.values() for name in group)
    outermost = [name for name in known if not any(is_inside(name, other) for other in known)]
    order = [name for name, _ in model.named_modules() if name in outermost]
    notes = []
    for glob, group in matches.items():
        within = [first[id(names[name])] for name in group]
        if not set(within) & set(outermost):
            around = next(other for other in outermost if is_inside(within[0], other))
            notes.append(f"--leaf-modules {glob!r} changes nothing: {within[0]} is part of leaf module {around}")
    return LeafSelection(tuple(order), tuple(notes))


def is_inside(name: str, other: str) -> bool:
    """Whether a module is within another, by their names."""
    return name.startswith(other + ".")


def is_callable(module: nn.Module) -> bool:
    """Whether a module can be called; a list of modules cannot."""
    return getattr(type(module), "forward", None) is not nn.Module.forward or "forward" in vars(module)


def _no_match(model: nn.Module, glob: str, names: Sequence[str]) -> BadInput:
    lists = {name for name, module in model.named_modules() if name and not is_callable(module)}
    container = next((name for name in sorted(lists) if fnmatchcase(name, glob)), None)
    if container is not None:
        return BadInput(
            "E325",
            f"--leaf-modules {glob!r} names {container}, which only holds modules and is never called itself",
            fix=f"--leaf-modules '{container}.*'",
        )
    near = difflib.get_close_matches(glob, names, n=MAX_SUGGESTIONS, cutoff=0.4) or list(names[:MAX_SUGGESTIONS])
    hint = f"near it: {', '.join(near)}" if near else "it has no modules"
    return BadInput(
        "E325",
        f"--leaf-modules {glob!r} matches no module of the model; {hint}",
        fix=f"--leaf-modules '{near[0]}'" if near else "",
    )


def find_glob(model: nn.Module, name: str) -> str:
    """Return a glob for a module and its like in other layers: `layers.*.gate` for layers.0.gate.

    As many numbers of the name as possible become `*`, so long as all modules that the glob names are of one class.
    """
    kind = type(model.get_submodule(name))
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    for kept in (set[int](), *({i} for i in reversed(numbers)), set(numbers)):
        glob = ".".join("*" if i in numbers and i not in kept else part for i, part in enumerate(parts))
        found = select_leaf_modules(model, [glob]).names
        if len(found) > 1 and {type(model.get_submodule(other)) for other in found} == {kind}:
            return glob
    return name
