"""What is trained in the simulation: gradients that leave in the parameters how often each batch was applied.

A slice has an element for each batch. In asynchronous methods the gradient of batch b is 1 at b of every slice, so with
plain SGD of rate 1 element b ends as minus the number of times that the batch was applied to that slice. In lock step
the gradient depends on the values and on a buffer too, so any difference on the way changes the bits in the end.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from world import present

from cutset.ps.client.replay_limit import REPLAY_BYTES
from cutset.ps.methods.registry import AnyMethod, parse_method
from cutset.ps.optimizers.standard import SGD, Adam
from cutset.ps.slices.compression import TopK
from cutset.ps.slices.region import Region
from cutset.ps.slices.slicing import slice_parameters
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.message import Message
from cutset.runtime.worker.flat_gradient import FlatGradient
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.job import Job
from cutset.tools.job.process_specs import TrainingSpec, WorkerSpec, worker_name
from cutset.tools.leases import batch_reader
from cutset.tools.replica import task_worker, worker_process
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.scores import Scores

BATCH = 4
STEP_S = (0.2, 0.6)  # of a machine


class Batch:
    """The samples of one batch, which are its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return BATCH


class Stream:
    """In the place of `SampleStream`."""

    def indices(self, number: int) -> int:
        return number

    def epochs(self, number: int) -> None:
        return None


class Samples:
    """In the place of `Data`."""

    def rows(self, number: int, epochs: object = None) -> Batch:
        return Batch(number)

    def __len__(self) -> int:
        return BATCH


class SimulatedPart:
    """In the place of `CutModelPart`: one machine of a replica, which talks to the others at every step."""

    def __init__(self, setup: WorkerSpec, task: object, mailbox: Mailbox) -> None:
        self.values = torch.zeros(sum(piece.size for piece in setup.slices))
        self.gradients = torch.zeros_like(self.values)
        self.worker = SimpleNamespace(trace=SimpleNamespace(complete_steps=list))
        self._setup, self._mailbox = setup, mailbox
        self._counts = not setup.method.lock_step
        self._mean = torch.zeros(1)  # a running statistic
        self._others = [worker_name(setup.replica, m, setup.incarnation) for m in range(setup.machines)]
        del self._others[setup.machine]
        self._batches = setup.training.batches

    @property
    def gradient(self) -> FlatGradient:
        return FlatGradient(self.gradients)

    def move(self, values: Tensor) -> None:
        self.values = values

    def step(self, batch: Batch, step: int) -> float | None:
        self._meet(step, "forward")
        present().sleep(present().chance.uniform(*STEP_S))
        one_hot = torch.zeros(self._batches)
        one_hot[batch.number] = 1.0
        rows = self.gradients.view(-1, self._batches)
        rows += one_hot
        if not self._counts:
            self._mean.mul_(0.9).add_(0.1 * batch.number)
            rows += torch.sin(self.values.view_as(rows)) * 0.3 + self._mean * 1e-3
        self._meet(step, "backward")
        return 1.0 if self._setup.machine == 0 else None

    def score(self, task: object, tests: object, batch: int) -> Scores:
        return Scores(2, 0.5, 1)

    def clip(self, max_norm: float, step: int) -> float:
        raise NotImplementedError

    def agree(self, number: int, step: int) -> int:
        if not self._setup.machine:
            for name in self._others:
                self._mailbox.send(name, Message("agree", step, body={"number": number}))
            return number
        first = worker_name(self._setup.replica, 0, self._setup.incarnation)
        return int(self._mailbox.wait([(first, "agree", step, 0, 0)]).body["number"])

    def buffers(self) -> list[Tensor]:
        return [] if self._counts else [self._mean]

    def state(self) -> list[Any]:
        return []

    def _meet(self, step: int, kind: str) -> None:
        for name in self._others:
            self._mailbox.send(name, Message(kind, step))
        for name in self._others:
            self._mailbox.wait([(name, kind, step, 0, 0)])


def install_workload() -> None:
    """Have the real `TaskWorker` train what is simulated."""
    task_worker.load_task = lambda spec: None  # type: ignore[assignment,return-value]
    task_worker.read_split = lambda task, split, seed=0, one_shape=True: Samples()  # type: ignore[assignment,return-value]
    task_worker.read_samples = lambda task, split, **ignored: Samples()  # type: ignore[assignment,return-value]
    batch_reader.make_stream = lambda samples, **ignored: Stream()  # type: ignore[assignment,return-value]
    task_worker.CutModelPart = SimulatedPart  # type: ignore[assignment,misc]


METHODS = [
    "downpour",
    "downpour:fetch=2,push=3",
    "downpour:overlap=true",
    "downpour:warm_start=2",
    "ssp:staleness=0",
    "ssp:staleness=2",
    "easgd:every=2",
    "sync",
    "sync",
    "sync:backups=1",
    "averaging:every=2",
    "diloco:every=3",
    "averaging:every=2,overlap=true",
]


def make_job(
    text: str, out: Path, *, seed: int, machines: int, replicas: int, shards: int, steps: int, every: int
) -> Job:
    """Return a job of so many steps of each replica. every: steps between two checkpoints."""
    method = parse_method(text)
    optimizer = Adam(0.05) if is_local(method) else SGD(0.05, momentum=0.9) if method.lock_step else SGD(1.0)
    batches = steps * replicas
    limit = REPLAY_BYTES if seed % 2 else 2000  # or so little that clients wait for journals
    worker_process.choose_replay_bytes = lambda *sizes: limit
    elements = [batches * (2 if machines == 1 else 1)] * machines  # slices of one element for each batch
    config = RunConfig(task="simulated", method=method, optimizer=optimizer, out=out, restarts=3, baseline=False)
    training = TrainingSpec(
        task=TaskSpec("simulated"),
        batch=BATCH,
        micro_batch=BATCH,
        seed=seed,
        replicas=replicas,
        steps=steps,
        evaluate_every=0,
        folder=str(out),
        checkpoint_every=every * method.push_period,
        samples=batches * BATCH,
    )
    names = [f"w{machine}" for machine in range(machines)]
    return Job(
        config=replace(config, replicas=replicas),
        method=method,
        optimizer=optimizer,
        compression=TopK(0.5) if text == "sync" and seed % 2 else None,
        shards=shards,
        task_name="simulated",
        placement=None,
        training=training,
        programs=[{"simulated": True}] * machines,  # type: ignore[list-item]
        evaluations=[{"simulated": True}] * machines,  # type: ignore[list-item]
        regions=[[Region(name, [n], [n], [(0, n)], 0)] for name, n in zip(names, elements, strict=True)],
        slices=slice_parameters(elements, shards, align=batches, max_elements=batches),
        names={name: name for name in names},
    )


def is_local(method: AnyMethod) -> bool:
    """Whether replicas have optimizers of their own in lock step."""
    return method.lock_step and method.name != "sync"
