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
    from .ps.all_reduce import AllReduce
    from .ps.averaging import Averaging
    from .ps.checkpoint import whole_state as load_checkpoint
    from .ps.delay_rules import AdaDelay, DCAdaptive, DCConstant
    from .ps.diloco import DiLoCo
    from .ps.downpour import Downpour
    from .ps.easgd import EASGD
    from .ps.gradient_rules import SGD, Adagrad, Adam, AdamW, Add, RMSprop, TorchAdagrad
    from .ps.hogwild import Hogwild
    from .ps.rules import Scaled
    from .ps.ssp import SSP
    from .ps.sync import Sync
    from .runtime.replica import Replica
    from .tools.planning import plan_model as plan
    from .tools.planning import replica_of as replica
    from .tools.train import train

__version__ = "0.1.0"

_HOME = {
    "AdaDelay": ("ps.delay_rules", "AdaDelay"),
    "Adagrad": ("ps.gradient_rules", "Adagrad"),
    "Adam": ("ps.gradient_rules", "Adam"),
    "AdamW": ("ps.gradient_rules", "AdamW"),
    "Add": ("ps.gradient_rules", "Add"),
    "AllReduce": ("ps.all_reduce", "AllReduce"),
    "Averaging": ("ps.averaging", "Averaging"),
    "CutsetError": ("partition.errors", "CutsetError"),
    "DCAdaptive": ("ps.delay_rules", "DCAdaptive"),
    "DCConstant": ("ps.delay_rules", "DCConstant"),
    "Data": ("models.task", "Data"),
    "DiLoCo": ("ps.diloco", "DiLoCo"),
    "Downpour": ("ps.downpour", "Downpour"),
    "EASGD": ("ps.easgd", "EASGD"),
    "Hogwild": ("ps.hogwild", "Hogwild"),
    "LocallyConnected2d": ("models.local", "LocallyConnected2d"),
    "Placement": ("partition.placement", "Placement"),
    "RMSprop": ("ps.gradient_rules", "RMSprop"),
    "Replica": ("runtime.replica", "Replica"),
    "SGD": ("ps.gradient_rules", "SGD"),
    "SSP": ("ps.ssp", "SSP"),
    "Scaled": ("ps.rules", "Scaled"),
    "Sync": ("ps.sync", "Sync"),
    "Task": ("models.task", "Task"),
    "TorchAdagrad": ("ps.gradient_rules", "TorchAdagrad"),
    "load_checkpoint": ("ps.checkpoint", "whole_state"),
    "load_placement": ("partition.placement", "load"),
    "plan": ("tools.planning", "plan_model"),
    "replica": ("tools.planning", "replica_of"),
    "train": ("tools.train", "train"),
}

__all__ = [
    "EASGD",
    "SGD",
    "SSP",
    "AdaDelay",
    "Adagrad",
    "Adam",
    "AdamW",
    "Add",
    "AllReduce",
    "Averaging",
    "CutsetError",
    "DCAdaptive",
    "DCConstant",
    "Data",
    "DiLoCo",
    "Downpour",
    "Hogwild",
    "LocallyConnected2d",
    "Placement",
    "RMSprop",
    "Replica",
    "Scaled",
    "Sync",
    "Task",
    "TorchAdagrad",
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
