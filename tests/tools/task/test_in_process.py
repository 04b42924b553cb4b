"""A module in hand is planned for the machines that the command would plan for."""

import threading
from dataclasses import replace

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cutset
from cutset.partition.cluster.machines import Cluster, Machine, NetworkLink, ProcessMemory, SharedCores, uniform_cluster
from cutset.tools.measured.saved_probe import make_key, make_saved_probe, save_probe


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


@pytest.mark.run
def test_a_number_of_machines_means_processes_as_they_were_measured(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CUTSET_CLUSTER")
    x = torch.randn(4, 8)
    unmeasured = cutset.plan(net(), x, machines=2)
    assert unmeasured.predicted.step_s == cutset.plan(net(), x, machines=uniform_cluster(2)).predicted.step_s
    machine = Machine("m", 1e6, memory_bytes=4 << 30, process_bytes=10**8)
    machines = tuple(replace(machine, name=f"m {n}") for n in range(2))
    probe = make_saved_probe(
        make_key(2), Cluster(machines, 1e9, 5e-5, shared=(SharedCores((0, 1), 2),)), busy=0, seconds=1
    )
    save_probe(probe)
    measured = cutset.plan(net(), x, machines=2)
    assert measured.predicted.step_s > 2 * unmeasured.predicted.step_s
    assert [m.memory_bytes for m in measured.machines] == [4 << 30, 4 << 30]
    used = [[m.memory_used_bytes for m in measured.machines]]
    for ratio in (2.0, 3.0):  # of activations and gradients
        save_probe(msgspec.structs.replace(probe, memory={measured.fingerprint.graph: ProcessMemory(10**8, ratio)}))
        used.append([m.memory_used_bytes for m in cutset.plan(net(), x, machines=2).machines])
    for once, twice, thrice in zip(*used, strict=True):
        assert thrice - twice == pytest.approx(twice - once, abs=2)
        assert twice > once


class Locked(nn.Module):
    """Holds a lock and a module of Python, and branches, so that it is traced, tried as an island and compared."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lock, self.functions = nn.Linear(8, 8), threading.Lock(), F

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            y = self.functions.relu(self.linear(x))
        return y if y.sum() > 0 else -y


def test_a_module_that_holds_what_cannot_be_copied_is_planned_and_run() -> None:
    model, x = Locked(), torch.randn(4, 8)
    placement = cutset.plan(model, x, machines=1)
    assert placement.leaf_modules == ["(model)"]
    with cutset.replica(model, placement, x) as replica:
        replica.step(cutset.Data((x,), ()), 0)


def test_targets_without_a_loss_are_refused() -> None:
    x = torch.randn(4, 8)
    placement = cutset.plan(net(), x)
    with pytest.raises(cutset.CutsetError, match="E309: targets are given without a loss"):
        cutset.plan(net(), (x,), (x,))
    with pytest.raises(cutset.CutsetError, match="E309"):
        cutset.replica(net(), placement, x, x)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_lazy_module_gets_its_sizes_from_the_example_batch(device: str) -> None:
    x, y = torch.randn(4, 8), torch.randn(4, 2)
    model = nn.Sequential(nn.LazyLinear(3, device=device), nn.Linear(3, 2, device=device))
    placement = cutset.plan(model, (x,), (y,), loss=F.mse_loss)
    sized = nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 2))
    assert placement.fingerprint == cutset.plan(sized, (x,), (y,), loss=F.mse_loss).fingerprint
    assert isinstance(model[0], nn.LazyLinear)


def test_a_replica_of_a_lazy_module_draws_its_values() -> None:
    x, model = torch.randn(4, 8), nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    placement = cutset.plan(model, x)
    losses = []
    for seed in (1, 1, 2):
        with cutset.replica(model, placement, x, seed=seed) as replica:
            losses.append(replica.step(cutset.Data((x,), ()), 0))
    assert losses[0] == losses[1] != losses[2]


def test_a_lazy_module_that_fails_on_the_example_batch() -> None:
    with pytest.raises(cutset.CutsetError, match=r"E321: the model, run on zeros .* mat1 and mat2"):
        cutset.plan(nn.Sequential(nn.LazyLinear(3), nn.Linear(4, 2)), torch.randn(4, 8))


@pytest.mark.parametrize("objective", ["time", "bytes", "memory"])
@pytest.mark.run
def test_a_plan_that_fits_is_found_though_no_candidate_does(objective: str) -> None:
    """Local search finds it from the plans that come nearest to fitting, not from the fastest ones."""
    model = nn.Sequential(nn.Linear(31, 3, bias=False), nn.BatchNorm1d(3)).double()
    x, y = torch.zeros(12, 31, dtype=torch.float64), torch.zeros(12, 3, dtype=torch.float64)
    sizes = ((1e6, 4521), (1e6, 75360), (16e6, 7536))
    machines = tuple(Machine(f"m{n}", speed, memory_bytes=size) for n, (speed, size) in enumerate(sizes))
    links = tuple(NetworkLink(*ends, 5e9, 3e-6) for ends in ((0, 2), (2, 0)))
    cluster = Cluster(machines, 125e6, 2e-4, links)
    placement = cutset.plan(
        model, x, y, loss=lambda o, t: (o - t).square().mean(), machines=cluster, objective=objective, trust_trace=True
    )
    assert len(placement.machines) == 3
    assert all(machine.memory_used_bytes <= machine.memory_bytes for machine in placement.machines)
