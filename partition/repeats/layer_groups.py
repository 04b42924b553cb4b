"""Finds the layers of a model that may be alike: modules of one class, with the same submodules and shapes."""

from collections.abc import Hashable, Sequence

from torch import nn

MIN_LAYERS = 3  # the first one or two are traced
MIN_MODULES = 2  # in a layer: a linear layer alone is traced as fast as it is compared


def find_layer_groups(model: nn.Module, leaf_modules: Sequence[str] = ()) -> list[list[str]]:
    """Return the names of the modules that may be repeated layers, like ones together, none of them inside of another.

    leaf_modules: names of modules that are not traced. A model that has one module under several names has no groups,
    since a trace says by which name a module was reached.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    if len({id(module) for module in modules.values()}) < len(modules):
        return []
    groups: dict[Hashable, list[str]] = {}
    for name, module in modules.items():
        near = (name + "." for name in leaf_modules)
        is_apart = name not in leaf_modules and not any((name + ".").startswith(prefix) for prefix in near)
        if name and is_apart and not any(leaf.startswith(name + ".") for leaf in leaf_modules) and _is_layer(module):
            groups.setdefault(_describe_structure(module), []).append(name)
    found, inside = list[list[str]](), set[str]()
    for group in sorted(groups.values(), key=lambda names: -len(list(modules[names[0]].modules()))):  # outer ones first
        outermost = [name for name in group if name not in inside]
        if len(outermost) >= MIN_LAYERS:
            found.append(outermost)
            inside.update(f"{name}.{path}" for name in outermost for path, _ in modules[name].named_modules() if path)
    return found


def _is_layer(module: nn.Module) -> bool:
    inner = list(module.modules())
    if len(inner) < MIN_MODULES or type(module).forward is nn.Module.forward:
        return False
    # How these read their attributes, or are called, cannot be watched. What a `__call__` of a class does before it
    # calls torch's, is not of the layer, and runs at every call.
    plain = all(type(one).__getattribute__ is object.__getattribute__ for one in inner)
    called = type(module)._call_impl is nn.Module._call_impl
    return plain and called and not any("forward" in vars(one) or "_call_impl" in vars(one) for one in inner)


def _describe_structure(module: nn.Module) -> Hashable:
    """Return classes, names and shapes of a module and all inside of it."""
    return tuple(
        (
            path,
            type(inner),
            tuple((name, tensor.shape if tensor is not None else None) for name, tensor in inner._parameters.items()),
            tuple((name, tensor.shape if tensor is not None else None) for name, tensor in inner._buffers.items()),
        )
        for path, inner in module.named_modules()
    )
