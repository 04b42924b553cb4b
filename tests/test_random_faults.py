"""Downpour over the in-memory channel with faults at random places: a named error soon, or a right result; no hang.

Two replicas of a model that is cut over two machines, and two shards, all in threads.
"""

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from busy import stretch
from in_threads import run_in_threads
from marking import with_slow
from torch import Tensor, nn

from cutset.errors import CutsetError
from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.ps.client.client import Client
from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.training_loop import TrainingLoop
from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import ParameterSlice, slice_parameters, slices_of_machine, slices_of_shard
from cutset.runtime.channel.faults import Fault, random_faults
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.worker.program import Program, programs
from cutset.runtime.worker.worker import Worker

MACHINES, REPLICAS, SHARDS, BATCH, STEPS = 2, 2, 2, 8, 20
SILENCE_S, PROMISED_S = 1.0, 10.0
WORKERS = [f"worker-{r}.{m}" for r in range(REPLICAS) for m in range(MACHINES)]
ROLES = [*WORKERS, *(f"shard-{s}" for s in range(SHARDS))]
RULE = SGD(0.1)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 5))


def batch_of(number: int) -> Data:
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(BATCH, 12, generator=generator)
    return Data((inputs,), (inputs[:, :5].argmax(1),))


@dataclass
class Job:
    """What all runs have in common."""

    programs: list[Program]
    slices: list[ParameterSlice]
    initial: dict[str, Tensor]


@pytest.fixture(scope="module")
def job() -> Job:
    """Every operator with 20 hidden units in halves, what remains on machine 1."""
    batch = batch_of(0)
    graph, constants = capture(mlp(), nn.functional.cross_entropy, batch.inputs, batch.targets)
    boxes: dict[str, Any] = {}
    for op in graph.ops:
        whole = op.nest.box
        loop = next((i for i, info in enumerate(op.nest.loops) if info.kind == "parallel" and info.size == 20), None)
        boxes[op.name] = [(whole, 1)]
        if loop is not None:
            parts = [(0, 10), (10, 20)]
            boxes[op.name] = [((*whole[:loop], part, *whole[loop + 1 :]), m) for m, part in enumerate(parts)]
    made = programs(lower_cut(graph, Cut(MACHINES, boxes)), training=True)
    slices = slice_parameters([program.elements for program in made], SHARDS, align=4)
    return Job(made, slices, collect_state(mlp(), nn.functional.cross_entropy, constants))


def run(job: Job, faults: list[Fault]) -> tuple[list[Shard], list[float]]:
    """The shards after training, and the losses that replica 0 saw."""
    losses: list[float] = []
    servers = [Shard(s, slices_of_shard(job.slices, s), ServingConfig(RULE)) for s in range(SHARDS)]

    def report(step: int, loss: float | None, samples: int) -> None:
        if loss is not None:
            losses.append(loss)

    def worker(channel: MemoryChannel, replica: int, machine: int) -> None:
        mailbox = Mailbox(channel, timeout_s=SILENCE_S)
        one = Worker(job.programs[machine], mailbox, [f"worker-{replica}.{m}" for m in range(MACHINES)])
        one.states.load(lambda name: job.initial[name])
        client = Client(mailbox, slices_of_machine(job.slices, machine), one.values, local_rate=RULE.local_rate)
        if replica == 0:
            client.put()
        batches = lambda step: batch_of(replica + step * REPLICAS) if step < STEPS else None  # noqa: E731
        told = report if replica == 0 else None
        loop = TrainingLoop(one, client, RULE, batches, replicas=REPLICAS, report=told)
        loop.run(Downpour().train(loop))

    lives = {
        name: partial(worker, replica=place // MACHINES, machine=place % MACHINES) for place, name in enumerate(WORKERS)
    }
    run_in_threads(servers, lives, network=MemoryNetwork(faults), timeout_s=PROMISED_S)
    return servers, losses


def end(job: Job, faults: list[Fault]) -> tuple[list[Shard], list[float]] | CutsetError:
    """What `run` returns or raises."""
    try:
        return run(job, faults)
    except CutsetError as error:
        return error


def check_result(servers: list[Shard], losses: list[float]) -> None:
    """Every push of every replica was applied once, and the model has learnt."""
    pushes = {piece["pushes"] // piece["slices"] for server in servers for piece in server.statistics()["slices"]}
    assert pushes == {REPLICAS * STEPS}
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("seed", with_slow(range(10), range(10, 30)))
def test_a_run_ends_soon_in_a_named_error_or_is_right(job: Job, seed: int) -> None:
    threads, began = set(threading.enumerate()), time.monotonic()
    outcome = end(job, random_faults(seed, ROLES, STEPS))
    if isinstance(outcome, CutsetError):
        assert any(role in outcome.facts for role in ROLES), outcome
        assert outcome.code in ("E501", "E502", "E602"), outcome
    else:
        check_result(*outcome)
    assert time.monotonic() - began < stretch(PROMISED_S)
    assert set(threading.enumerate()) == threads


def test_the_seeds_have_every_kind_of_fault(job: Job) -> None:
    """Else the test above would prove little."""
    harm = [random_faults(seed, ROLES, STEPS)[0] for seed in range(30)]
    assert {type(fault).__name__ for fault in harm} == {"Kill", "Stop", "Disconnect", "BlackHole", "DropMessage"}


def test_without_faults_the_result_is_right(job: Job) -> None:
    check_result(*run(job, []))


def test_the_same_seed_gives_the_same_faults() -> None:
    assert random_faults(3, ROLES, STEPS) == random_faults(3, ROLES, STEPS) != random_faults(4, ROLES, STEPS)
