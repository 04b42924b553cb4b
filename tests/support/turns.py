"""Asynchronous replicas without threads or clocks: they take turns on a real shard, by a schedule drawn from a seed."""

import heapq
import random
from typing import NamedTuple

import torch
from torch import nn

from cutset.errors import Diverged
from cutset.models.sample_stream import SampleStream
from cutset.models.tasks.digits import digits
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import slice_parameters
from cutset.ps.slices.staleness import merge_histograms
from cutset.runtime.channel.message import Message
from cutset.runtime.worker.uncut_worker import UncutWorker

BATCH = 20


class Turns(NamedTuple):
    """How a run ended. accuracy: on the test samples; staleness: mean, max and histogram over all pushes."""

    accuracy: float
    staleness: dict
    diverged: bool


def schedule(replicas, updates, seed):
    """Whose push comes next. Steps take about as long on all replicas, and never quite: half as long or twice."""
    draw = random.Random(seed)
    ends = [(draw.lognormvariate(0.0, 0.5), replica) for replica in range(replicas)]
    heapq.heapify(ends)
    for _ in range(updates):
        now, replica = ends[0]
        yield replica
        heapq.heapreplace(ends, (now + draw.lognormvariate(0.0, 0.5), replica))


def take_turns(optimizer, *, replicas, updates=1400, seed=0):
    """Train a 64-64-10 perceptron on digits; each replica fetches as soon as it has pushed."""
    torch.manual_seed(seed)
    worker = UncutWorker(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), nn.functional.cross_entropy)
    samples, tests = (digits().data(split) for split in ("train", "test"))
    stream = SampleStream(len(samples), batch=BATCH, seed=seed)
    slices = slice_parameters([worker.values.numel()], 1)
    shard = Shard(0, slices, ServingConfig(optimizer, replicas))

    def ask(replica, kind, body, *tensors, step=0):
        ((_, reply),) = shard.handle(
            Message(kind, sender=f"worker-{replica}.0", step=step, body={"replica": replica, **body}, tensors=tensors)
        )
        return reply

    def fetched(replica):
        """Version and values."""
        reply = ask(replica, "fetch", {"min_version": 0, "min_step": 0})
        return reply.body["version"], reply.tensors[0].clone()

    ask(0, "put", {}, worker.values.clone())
    held = [fetched(replica) for replica in range(replicas)]
    pushes, diverged = [0] * replicas, False
    for number, replica in enumerate(schedule(replicas, updates, seed)):
        base, values = held[replica]
        worker.values.copy_(values)
        worker.gradients.zero_()
        batch = samples.rows(stream.indices(number))
        # As `worker.step` does, which also sets random numbers that this model does not need.
        worker.loss(worker.model(*batch.inputs), *batch.targets).backward()
        pushes[replica] += 1
        body = {"base": base, "number": pushes[replica]}
        try:
            ask(replica, "push", body, worker.gradients.clone(), step=pushes[replica] - 1)
        except Diverged:
            diverged = True
            break
        held[replica] = fetched(replica)
    worker.values.copy_(shard.slice_states()[0].value)
    with torch.no_grad():
        right = (worker.model(tests.inputs[0]).argmax(1) == tests.targets[0]).sum().item()
    (piece,) = shard.statistics()["slices"]
    return Turns(right / len(tests), merge_histograms(piece["staleness"].values()), diverged)
