"""Training in threads: shards, and replicas of a linear regression in float64, by any method."""

import torch
from in_threads import run_in_threads

from cutset.ps.client.client import Client
from cutset.ps.methods.training_loop import TrainingLoop
from cutset.ps.optimizers.optimizer import Update
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import slice_parameters, slices_of_machine, slices_of_shard
from cutset.ps.slices.staleness import merge_histograms
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork

SIZE = 50


def batch_of(number, size=8):
    """A batch of linear regression: inputs [size, SIZE], targets [size]."""
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(size, SIZE, dtype=torch.float64, generator=generator)
    return list(zip(inputs, inputs.sum(1), strict=True))


def every(replica, replicas, steps):
    """The batches of one of several replicas that take turns."""
    return lambda step: batch_of(replica + step * replicas) if step < steps else None


class Regression:
    """Mean squared error of inputs @ values; the minimum is at values = 1.

    before: called at each step's begin; after: when training has ended.
    """

    def __init__(self, before=lambda step: None, after=lambda: None):
        self.values = torch.zeros(SIZE, dtype=torch.float64)
        self.gradients = torch.full((SIZE,), 7.0, dtype=torch.float64)  # training must not build on what was there
        self._before = before
        self.after = after

    def move(self, values):
        self.values = values

    def step(self, batch, step):
        self._before(step)
        inputs, targets = (torch.stack(rows) for rows in zip(*batch, strict=True))
        errors = inputs @ self.values - targets
        self.gradients += 2 * inputs.T @ errors / len(batch)
        return float(errors.square().mean())


def run(
    method, optimizer, *, steps, replicas=1, shards=2, workers=None, shard_class=Shard, copies=False, parts=1, **options
):
    """Train; the final values on the shards, the shards' statistics, and each replica's reports.

    options: of the clients.
    """
    method.check(optimizer, replicas, steps)
    slices = slice_parameters([SIZE], shards)
    workers = workers or [Regression() for _ in range(replicas)]
    serving = method.configure_shards(optimizer, replicas)
    servers = [shard_class(s, slices_of_shard(slices, s), serving) for s in range(shards)]
    reports = [[] for _ in range(replicas)]

    def worker(replica):
        def life(channel):
            one = workers[replica]
            rate = method.local_rate(optimizer)
            client = Client(
                Mailbox(channel), slices_of_machine(slices, 0), one.values, local_rate=rate, replica=replica, **options
            )
            if replica == 0:
                client.put()
            for part in range(parts):
                if part > 0:
                    one.values.fill_(float("nan"))  # whatever was done to them: training begins with a fetch
                span = range(steps * part // parts, steps * (part + 1) // parts)
                loop = TrainingLoop(
                    one,
                    client,
                    optimizer,
                    every(replica, replicas, span.stop),
                    replicas=replicas,
                    start_step=span.start,
                    report=lambda *row: reports[replica].append(row),
                )
                loop.run(method.train(loop))
                assert not client.is_fetching
                assert client.in_flight == 0
            one.after()

        return life

    lives = {f"worker-{r}.0": worker(r) for r in range(replicas)}
    statistics = run_in_threads(servers, lives, network=MemoryNetwork(copies=copies))
    values = torch.cat([slice_state.value for server in servers for slice_state in server.slice_states()])
    return values, statistics, reports


def check_lock_step(method, optimizer, *, replicas, steps=40):
    """Train, and compare with one process that has the batch of all. What the shards say of each machine's slices."""
    values, statistics, reports = run(method, optimizer, steps=steps, replicas=replicas)
    torch.testing.assert_close(values, in_one_process(optimizer, steps, replicas), rtol=0, atol=1e-10)
    assert [[step for step, _, _ in rows] for rows in reports] == [list(range(steps))] * replicas
    return pieces(statistics)


def plain_sgd(lr, steps):
    one = Regression()
    optimiser = torch.optim.SGD([one.values.requires_grad_()], lr=lr)
    for step in range(steps):
        inputs, targets = (torch.stack(rows) for rows in zip(*batch_of(step), strict=True))
        optimiser.zero_grad()
        (inputs @ one.values - targets).square().mean().backward()
        optimiser.step()
    return one.values.detach()


def in_one_process(optimizer, steps, replicas):
    """The values after as many steps with the batches of all replicas as one."""
    batches = ([row for r in range(replicas) for row in batch_of(step * replicas + r)] for step in range(steps))
    return one_after_the_other(optimizer, batches)


def one_after_the_other(optimizer, batches):
    """The values after an update by each batch."""
    one = Regression()
    state = optimizer.init_state(one.values)
    for step, batch in enumerate(batches):
        update(one, optimizer, state, batch, step)
    return one.values


def update(one, optimizer, state, batch, step):
    """A step and its update, in this thread."""
    one.gradients.zero_()
    one.step(batch, step)
    optimizer.apply(one.values, one.gradients, state, Update(step + 1))


def pieces(statistics):
    """What all shards say of each machine's slices."""
    return [piece for shard in statistics for piece in shard["slices"]]


def staleness(statistics):
    """Of all pushes: mean, max and histogram."""
    return merge_histograms(part for piece in pieces(statistics) for part in piece["staleness"].values())
