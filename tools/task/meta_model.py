"""A task's model without weights, for whoever needs its code only."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .load_task import build_model

if TYPE_CHECKING:
    from ...models.task import Task


def build_without_weights(task: "Task", *, seed: int = 0) -> nn.Module:
    """Build the model on meta; one that keeps plain tensors is built for real from `seed`, since they have values."""
    model = build_model(task, seed=seed, device="meta")
    return model if next(_plain_tensors(model), None) is None else build_model(task, seed=seed)


def _plain_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield tensors among the attributes of modules, also in lists and dicts, that are no parameters or buffers."""
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        held = [value for name, value in vars(module).items() if name not in ("_parameters", "_buffers", "_modules")]
        yield from (leaf for leaf in tree_leaves(held) if isinstance(leaf, Tensor) and id(leaf) not in registered)


def non_persistent_buffers(task: "Task") -> list[str]:
    """Return the names of buffers that a state_dict leaves out: they are not persistent, the model makes them."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in build_without_weights(task).named_modules()
        for name in sorted(module._non_persistent_buffers_set)
        if getattr(module, name) is not None
    ]
