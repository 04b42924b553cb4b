"""cutset cuts a PyTorch model over the machines you have and trains it without a fast network.

The public face: everything here is defined in another folder and loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import CutsetError
    from .models.buckets import Buckets
    from .models.metrics import Perplexity
    from .models.padding import PadTo
    from .models.parts import Parts
    from .models.task import Data, Task
    from .models.tasks.locally_connected import LocallyConnected2d
    from .partition.placement.placement_file import Placement
    from .partition.placement.placement_file import load as load_placement
    from .ps.checkpoint.read_checkpoint import load_checkpoint
    from .ps.methods.all_reduce import AllReduce
    from .ps.methods.downpour import Downpour
    from .ps.methods.easgd import EASGD
    from .ps.methods.hogwild import Hogwild
    from .ps.methods.local_sgd import Averaging, DiLoCo
    from .ps.methods.ssp import SSP
    from .ps.methods.sync import Sync
    from .ps.optimizers.delay_compensated import AdaDelay, DCAdaptive, DCConstant
    from .ps.optimizers.rates import Scaled, Scheduled
    from .ps.optimizers.schedule import Cosine, Linear, OneCycle, StepDecay, TabulatedSchedule
    from .ps.optimizers.standard import SGD, Adagrad, Adam, AdamW, Add, RMSprop, TorchAdagrad
    from .runtime.replica.replica import Replica
    from .tools.config.parameter_group import Group
    from .tools.python.callbacks import Callback
    from .tools.python.trainer import Trainer
    from .tools.scripts.script_role import connect
    from .tools.scripts.script_run import ScriptRun
    from .tools.task.in_process import make_replica as replica
    from .tools.task.in_process import plan_model as plan
    from .tools.train import train

__version__ = "0.1.0"

_HOME = {
    "AdaDelay": ("ps.optimizers.delay_compensated", "AdaDelay"),
    "Adagrad": ("ps.optimizers.standard", "Adagrad"),
    "Adam": ("ps.optimizers.standard", "Adam"),
    "AdamW": ("ps.optimizers.standard", "AdamW"),
    "Add": ("ps.optimizers.standard", "Add"),
    "AllReduce": ("ps.methods.all_reduce", "AllReduce"),
    "Averaging": ("ps.methods.local_sgd", "Averaging"),
    "Buckets": ("models.buckets", "Buckets"),
    "Callback": ("tools.python.callbacks", "Callback"),
    "Cosine": ("ps.optimizers.schedule", "Cosine"),
    "CutsetError": ("errors", "CutsetError"),
    "DCAdaptive": ("ps.optimizers.delay_compensated", "DCAdaptive"),
    "DCConstant": ("ps.optimizers.delay_compensated", "DCConstant"),
    "Data": ("models.task", "Data"),
    "DiLoCo": ("ps.methods.local_sgd", "DiLoCo"),
    "Downpour": ("ps.methods.downpour", "Downpour"),
    "EASGD": ("ps.methods.easgd", "EASGD"),
    "Group": ("tools.config.parameter_group", "Group"),
    "Hogwild": ("ps.methods.hogwild", "Hogwild"),
    "Linear": ("ps.optimizers.schedule", "Linear"),
    "LocallyConnected2d": ("models.tasks.locally_connected", "LocallyConnected2d"),
    "OneCycle": ("ps.optimizers.schedule", "OneCycle"),
    "PadTo": ("models.padding", "PadTo"),
    "Parts": ("models.parts", "Parts"),
    "Perplexity": ("models.metrics", "Perplexity"),
    "Placement": ("partition.placement.placement_file", "Placement"),
    "RMSprop": ("ps.optimizers.standard", "RMSprop"),
    "Replica": ("runtime.replica.replica", "Replica"),
    "SGD": ("ps.optimizers.standard", "SGD"),
    "SSP": ("ps.methods.ssp", "SSP"),
    "Scaled": ("ps.optimizers.rates", "Scaled"),
    "Scheduled": ("ps.optimizers.rates", "Scheduled"),
    "StepDecay": ("ps.optimizers.schedule", "StepDecay"),
    "ScriptRun": ("tools.scripts.script_run", "ScriptRun"),
    "Sync": ("ps.methods.sync", "Sync"),
    "TabulatedSchedule": ("ps.optimizers.schedule", "TabulatedSchedule"),
    "Task": ("models.task", "Task"),
    "TorchAdagrad": ("ps.optimizers.standard", "TorchAdagrad"),
    "Trainer": ("tools.python.trainer", "Trainer"),
    "connect": ("tools.scripts.script_role", "connect"),
    "load_checkpoint": ("ps.checkpoint.read_checkpoint", "load_checkpoint"),
    "load_placement": ("partition.placement.placement_file", "load"),
    "plan": ("tools.task.in_process", "plan_model"),
    "replica": ("tools.task.in_process", "make_replica"),
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
    "Buckets",
    "Callback",
    "Cosine",
    "CutsetError",
    "DCAdaptive",
    "DCConstant",
    "Data",
    "DiLoCo",
    "Downpour",
    "Group",
    "Hogwild",
    "Linear",
    "LocallyConnected2d",
    "OneCycle",
    "PadTo",
    "Parts",
    "Perplexity",
    "Placement",
    "RMSprop",
    "Replica",
    "Scaled",
    "Scheduled",
    "ScriptRun",
    "StepDecay",
    "Sync",
    "TabulatedSchedule",
    "Task",
    "TorchAdagrad",
    "Trainer",
    "connect",
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
