"""Downpour on a model that is really cut: two machines a replica, and a checkpoint that gives the plain model back."""

import pytest
import torch
from in_threads import run_in_threads
from torch import nn

from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.ps.checkpoint.manifest import Manifest
from cutset.ps.checkpoint.read_checkpoint import load_checkpoint
from cutset.ps.checkpoint.write_checkpoint import write_manifest, write_shard
from cutset.ps.client.client import Client
from cutset.ps.methods.all_reduce import AllReduce
from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.easgd import EASGD
from cutset.ps.methods.hogwild import Hogwild
from cutset.ps.methods.local_sgd import Averaging, DiLoCo
from cutset.ps.methods.ssp import SSP
from cutset.ps.methods.sync import Sync
from cutset.ps.methods.training_loop import TrainingLoop
from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.shard import Shard
from cutset.ps.slices.region import Region
from cutset.ps.slices.slicing import slice_parameters, slices_of_machine, slices_of_shard
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.worker import Worker

MACHINES, SHARDS, BATCH = 2, 2, 8


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 5)).double()


def batch_of(number):
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(BATCH, 12, dtype=torch.float64, generator=generator)
    return Data((inputs,), (inputs[:, :5].argmax(1),))


def halves(graph):
    """Every operator cut in two along the first loop that may be, so both machines hold parameters and exchange."""
    boxes = {}
    for op in graph.ops:
        whole = op.nest.box
        loop = next((i for i, info in enumerate(op.nest.loops) if info.kind == "parallel" and info.size == 20), None)
        if loop is None:
            boxes[op.name] = [(whole, 1)]
            continue
        parts = [(0, 10), (10, 20)]
        boxes[op.name] = [((*whole[:loop], part, *whole[loop + 1 :]), machine) for machine, part in enumerate(parts)]
    return Cut(MACHINES, boxes)


def without_parameters(graph):
    """Machine 1 has the activation and the loss, and nothing that is trained."""
    return Cut(MACHINES, {op.name: [(op.nest.box, int("linear" not in op.name))] for op in graph.ops})


def regions_of(program):
    """Where a machine's parameters lie in its flat buffer."""
    found = []
    for state in program.states:
        if state.offset >= 0:
            piece = program.pieces[state.piece]
            info = program.tensors[piece.tensor]
            found.append(Region(info.name, list(info.shape), list(info.extents), list(piece.box), state.offset))
    return found


def run(method, optimizer, folder, *, replicas, steps, cut=halves):
    """Train the cut model and write a checkpoint; the losses of replica 0."""
    batch = batch_of(0)
    graph, constants = capture(mlp(), nn.functional.cross_entropy, batch.inputs, batch.targets)
    made = programs(lower_cut(graph, cut(graph)), training=True)
    start = collect_state(mlp(), nn.functional.cross_entropy, constants)
    slices = slice_parameters([program.elements for program in made], SHARDS, align=4, whole=method.needs_one_shard)
    assert all(program.elements for program in made) == (cut is halves)
    losses = []

    def worker(replica, machine):
        def life(channel):
            mailbox = Mailbox(channel, timeout_s=30.0)
            one = Worker(made[machine], mailbox, [f"worker-{replica}.{m}" for m in range(MACHINES)])
            one.states.load(lambda name: start[name])
            rate, own = method.local_rate(optimizer), slices_of_machine(slices, machine)
            client = Client(mailbox, own, one.values, local_rate=rate, replica=replica)
            if replica == 0:
                client.put()
            batches = lambda step: batch_of(replica + step * replicas) if step < steps else None  # noqa: E731
            told = report if replica == 0 else None
            loop = TrainingLoop(one, client, optimizer, batches, replicas=replicas, agree=one.broadcast, report=told)
            loop.run(method.train(loop))

        return life

    def report(step, loss, samples):
        if loss is not None:
            losses.append(loss)

    servers = [
        Shard(s, slices_of_shard(slices, s), method.configure_shards(optimizer, replicas)) for s in range(SHARDS)
    ]
    run_in_threads(servers, {f"worker-{r}.{m}": worker(r, m) for r in range(replicas) for m in range(MACHINES)})
    files = [write_shard(folder, s, server.slice_states(), optimizer) for s, server in enumerate(servers)]
    write_manifest(folder, Manifest(slices, [regions_of(program) for program in made], files))
    return losses


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "method", [Downpour(), Downpour(overlap=True), Downpour(fetch=3, push=2), AllReduce(), Hogwild()]
)
def test_one_replica_of_a_cut_model_equals_plain_sgd(method, tmp_path):
    losses = run(method, SGD(0.1), tmp_path, replicas=1, steps=50)
    model, expected = mlp(), []
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(50):
        batch = batch_of(step)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(*batch.inputs), *batch.targets)
        loss.backward()
        optimiser.step()
        expected.append(float(loss.detach()))
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=0, atol=1e-10)
    torch.testing.assert_close(load_checkpoint(tmp_path), dict(model.state_dict()), rtol=0, atol=1e-10)


METHODS = (Averaging(every=5), DiLoCo(every=5), Downpour(), EASGD(every=5), AllReduce(), Hogwild(), SSP(), Sync())


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("method", METHODS)
def test_a_machine_may_have_no_parameters(method, tmp_path):
    losses = run(method, SGD(0.2), tmp_path, replicas=2, steps=60, cut=without_parameters)
    assert sum(losses[-20:]) < sum(losses[:20])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("method", [Downpour(warm_start=3), AllReduce(), Hogwild()])
def test_replicas_of_a_cut_model_learn_together(method, tmp_path):
    losses = run(method, SGD(0.2), tmp_path, replicas=2, steps=200)
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
