"""A task's model without weights, for whoever needs its code only."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils._pytree import tree_leaves

from ...errors import BadInput
from ...partition.operators.step_module import StepModule
from ..samples.read_samples import example_batch
from ..units import format_bytes
from .load_task import build_model

if TYPE_CHECKING:
    from ...models.task import Task

FAILS = "E303"  # a model's own code
MAX_WHOLE_BYTES = 256 << 20  # of parameters and buffers; a larger model is never whole in the process that plans


def build_without_weights(task: "Task", *, seed: int = 0) -> nn.Module:
    """Build the model on meta; one that keeps plain tensors is built for real from `seed`, since they have values.

    So is one whose code looks at values, as `.item()` does; BadInput if that has more than MAX_WHOLE_BYTES.
    """
    try:
        model = build_model(task, seed=seed, device="meta")
    except BadInput as error:
        if error.code != FAILS:
            raise
        return _build_small(task, seed, error)
    return model if next(_plain_tensors(model), None) is None else build_model(task, seed=seed)


def build_step(task: "Task", *, seed: int = 0) -> StepModule:
    """Build the model without weights, and its loss, as one module."""
    return StepModule(build_without_weights(task, seed=seed), task.loss, example_batch(task, 1).names)


class _TooLargeError(Exception):
    """A model has more than MAX_WHOLE_BYTES."""


def _build_small(task: "Task", seed: int, on_meta: BadInput) -> nn.Module:
    """Build a model whose size is not known; BadInput once it has too many parameters. on_meta: why meta fails."""
    memories = dict[int, int]()

    def add(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            memories[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        if sum(memories.values()) > MAX_WHOLE_BYTES:
            raise _TooLargeError

    hooks = register_module_parameter_registration_hook(add), register_module_buffer_registration_hook(add)
    try:
        return build_model(task, seed=seed)
    except BadInput as error:
        if not isinstance(error.__cause__, _TooLargeError):
            raise
        raise BadInput(
            FAILS,
            f"{on_meta.facts}; it is built without values, as it has more than {format_bytes(MAX_WHOLE_BYTES)}",
            fix="compute what is needed in Python, or on a CPU: with torch.device('cpu'): ...",
        ) from on_meta
    finally:
        for hook in hooks:
            hook.remove()


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
