"""Batch methods in threads: a coordinator, vector shards, and workers with a plain function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutset.ps.sandblaster.coordinator import Coordinator
from cutset.ps.sandblaster.coordinator_loop import coordinate
from cutset.ps.sandblaster.gradient_worker import GradientWorker
from cutset.ps.sandblaster.recovery_log import RecoveryLog
from cutset.ps.sandblaster.solver import Portions, SolverRun
from cutset.ps.sandblaster.vector_shard import VectorShard, slice_initial_values
from cutset.ps.server.serve_loop import serve
from cutset.ps.slices.slicing import slice_parameters, slices_of_shard
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.channel.message import LAUNCHER, Message
from cutset.runtime.worker.flat_gradient import FlatGradient

Loss = Callable[[Tensor, slice], Tensor]  # the mean loss of some samples at a point [n]


@dataclass
class SandblasterResult:
    """What a run has come to."""

    values: Tensor
    result: dict[str, Any]
    iterations: list[dict[str, Any]] = field(default_factory=list)
    shards: list[dict[str, Any]] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        """Of each iteration."""
        return [told["loss"] for told in self.iterations]


def sandblast(
    method: Callable[[], SolverRun],
    loss: Loss,
    start: Tensor,
    portions: Portions,
    folder: Path,
    *,
    shards: int = 1,
    replicas: int = 1,
    most: int = 1 << 20,
) -> SandblasterResult:
    """Run a method to its end."""
    slices = slice_parameters([start.numel()], shards, align=1, max_elements=most)
    names = [f"shard-{n}" for n in range(shards)]
    workers = [f"worker-{r}.0" for r in range(replicas)]

    def coordinator(channel: MemoryChannel) -> dict[str, Any]:
        log = RecoveryLog(folder / "log", {})
        role = Coordinator(method, portions, log, names, replicas=replicas)
        try:
            return coordinate(role, channel)
        finally:
            log.close()

    def shard(channel: MemoryChannel) -> dict[str, Any]:
        index = int(channel.name.removeprefix("shard-"))
        role = VectorShard(index, slices_of_shard(slices, index), portions, slice_initial_values({0: start}), folder)
        return serve(role, channel)

    def worker(channel: MemoryChannel) -> Tensor:
        role = plain_worker(channel, slices, loss, start, portions)
        role.run()
        role.fetch_parameters()
        channel.send(LAUNCHER, Message("trained"))
        return role.values

    ran = SandblasterResult(start, {})

    def launcher(channel: MemoryChannel) -> None:
        left = set(workers)
        while left:
            message = channel.receive(60.0)
            if message.kind == "iteration":
                ran.iterations.append(message.body)
            left -= {message.sender} if message.kind == "trained" else set()
        for name in ("coordinator", *names):
            channel.send(name, Message("finish"))

    roles: dict[str, Callable[[MemoryChannel], Any]] = {LAUNCHER: launcher, "coordinator": coordinator}
    results = MemoryNetwork().run(roles | dict.fromkeys(names, shard) | dict.fromkeys(workers, worker))
    ran.values, ran.result = results[workers[0]], results["coordinator"]
    ran.shards = [results[name] for name in names]
    return ran


def plain_worker(
    channel: MemoryChannel, slices: Sequence[Any], loss: Loss, start: Tensor, portions: Portions
) -> GradientWorker:
    """A worker that computes a plain function."""
    values, gradients = start.clone(), torch.zeros_like(start)

    def compute(portion: int, step: int) -> float:
        point = values.clone().requires_grad_()
        samples = slice(portion * portions.size, min((portion + 1) * portions.size, portions.samples))
        found = loss(point, samples)
        found.backward()
        assert point.grad is not None
        gradients.add_(point.grad)
        return found.item()

    mailbox = Mailbox(channel)
    return GradientWorker(
        mailbox, slices, values, FlatGradient(gradients), compute, portions, coordinator="coordinator"
    )
