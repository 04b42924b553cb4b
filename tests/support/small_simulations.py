"""Simulations that take a second or less: a small perceptron on points of two classes."""

from functools import lru_cache
from typing import Any

import torch
from torch import nn

from cutset.models.task import Data, Task
from cutset.tools.virtual_time.machines import SimulatedMachines
from cutset.tools.virtual_time.replica import SharedModel
from cutset.tools.virtual_time.results import SimulatedRun, SimulationSpec
from cutset.tools.virtual_time.samples import SplitSamples
from cutset.tools.virtual_time.virtual_run import VirtualRun

SAMPLES, INPUTS, BATCH = 512, 8, 16


@lru_cache
def make_task() -> Task:
    """Points that a plane divides, of which the sum of the first inputs says the side."""
    inputs = torch.randn(SAMPLES, INPUTS, generator=torch.Generator().manual_seed(0))
    classes = (inputs[:, :4].sum(1) > 0).long()
    data = {"train": Data((inputs[:384],), (classes[:384],)), "test": Data((inputs[384:],), (classes[384:],))}

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, 16), nn.ReLU(), nn.Linear(16, 2))

    return Task(
        "plane",
        model,
        nn.functional.cross_entropy,
        lambda batch: data["train"].rows(torch.arange(batch)),
        data.__getitem__,
        batch=BATCH,
    )


@lru_cache
def make_model() -> SharedModel:
    """The model that all simulations share."""
    return SharedModel(make_task(), seed=0)


@lru_cache
def make_samples() -> SplitSamples:
    """The samples."""
    task = make_task()
    assert task.data is not None
    train, test = task.data("train"), task.data("test")
    return SplitSamples(train, test)


def make_spec(method: str = "downpour", **options: Any) -> SimulationSpec:
    """A run of four replicas whose steps take a second, more or less, unless the options say otherwise."""
    machines = SimulatedMachines(step_s=1.0, spread=0.3, latency_s=0.01)
    given = {"optimizer": "sgd", "lr": 0.1, "batch": BATCH, "samples": 64 * BATCH, "replicas": 4, "points": 4}
    return SimulationSpec(method=method, **{**given, "machines": machines, **options})


def simulate(method: str = "downpour", **options: Any) -> SimulatedRun:
    """Run a simulation."""
    return VirtualRun(make_spec(method, **options), make_model(), make_samples()).run()
