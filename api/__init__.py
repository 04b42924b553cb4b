"""cutset cuts a PyTorch model over the machines you have and trains it without a fast network.

The public face: everything here is defined in another folder and loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models.local import LocallyConnected2d
    from .models.task import Data, Task
    from .partition.errors import CutsetError
    from .partition.placement import Placement
    from .partition.placement import load as load_placement
    from .ps.checkpoint import whole_state as load_checkpoint
    from .ps.downpour import Downpour
    from .ps.gradient_rules import SGD, Adagrad
    from .ps.ssp import SSP
    from .ps.sync import Sync
    from .runtime.replica import Replica
    from .tools.planning import plan_model as plan
    from .tools.planning import replica_of as replica
    from .tools.train import train

__version__ = "0.1.0"

_HOME = {
    "Adagrad": ("ps.gradient_rules", "Adagrad"),
    "CutsetError": ("partition.errors", "CutsetError"),
    "Data": ("models.task", "Data"),
    "Downpour": ("ps.downpour", "Downpour"),
    "LocallyConnected2d": ("models.local", "LocallyConnected2d"),
    "Placement": ("partition.placement", "Placement"),
    "Replica": ("runtime.replica", "Replica"),
    "SSP": ("ps.ssp", "SSP"),
    "Sync": ("ps.sync", "Sync"),
    "SGD": ("ps.gradient_rules", "SGD"),
    "Task": ("models.task", "Task"),
    "load_checkpoint": ("ps.checkpoint", "whole_state"),
    "load_placement": ("partition.placement", "load"),
    "plan": ("tools.planning", "plan_model"),
    "replica": ("tools.planning", "replica_of"),
    "train": ("tools.train", "train"),
}

__all__ = [
    "SGD",
    "SSP",
    "Adagrad",
    "CutsetError",
    "Data",
    "Downpour",
    "LocallyConnected2d",
    "Placement",
    "Replica",
    "Sync",
    "Task",
    "load_checkpoint",
    "load_placement",
    "plan",
    "replica",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(import_module(f".{module}", __name__), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
