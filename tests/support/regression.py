"""Training in threads: shards, and replicas of a linear regression in float64, by any method."""

import torch

from cutset.ps.client import Client
from cutset.ps.layout import layout, of_machine, of_shard
from cutset.ps.rule import Update
from cutset.ps.shard import Shard
from cutset.ps.shard_loop import serve
from cutset.ps.share import Share
from cutset.ps.staleness import merged
from cutset.runtime.mailbox import Mailbox
from cutset.runtime.memory_channel import MemoryNetwork
from cutset.runtime.message import Message

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
    method, rule, *, steps, replicas=1, shards=2, workers=None, shard_class=Shard, copies=False, parts=1, **options
):
    """Train; the final values on the shards, the shards' statistics, and each replica's reports.

    options: of the clients.
    """
    method.check(rule, replicas, steps)
    network = MemoryNetwork(copies=copies)
    slices = layout([SIZE], shards)
    workers = workers or [Regression() for _ in range(replicas)]
    servers = [shard_class(s, of_shard(slices, s), method.serving(rule, replicas)) for s in range(shards)]
    reports = [[] for _ in range(replicas)]

    def worker(replica):
        def life(channel):
            one = workers[replica]
            rate = method.local_rate(rule)
            client = Client(
                Mailbox(channel), of_machine(slices, 0), one.values, local_rate=rate, replica=replica, **options
            )
            if replica == 0:
                client.put()
            for part in range(parts):
                if part > 0:
                    one.values.fill_(float("nan"))  # whatever was done to them: training begins with a fetch
                span = range(steps * part // parts, steps * (part + 1) // parts)
                share = Share(
                    one,
                    client,
                    rule,
                    every(replica, replicas, span.stop),
                    replicas=replicas,
                    first=span.start,
                    report=lambda *row: reports[replica].append(row),
                )
                method.train(share)
                assert not client.fetching
                assert client.in_flight == 0
            one.after()
            channel.send("launcher", Message("done"))

        return life

    def launcher(channel):
        for _ in range(replicas):
            channel.receive(30.0)
        for s in range(shards):
            channel.send(f"shard-{s}", Message("finish"))

    roles = {f"shard-{s}": lambda channel, s=s: serve(servers[s], channel, interval_s=30.0) for s in range(shards)}
    roles |= {f"worker-{r}.0": worker(r) for r in range(replicas)}
    results = network.run({**roles, "launcher": launcher})
    values = torch.cat([holding.value for server in servers for holding in server.holdings()])
    return values, [results[f"shard-{s}"] for s in range(shards)], reports


def plain_sgd(lr, steps):
    one = Regression()
    optimiser = torch.optim.SGD([one.values.requires_grad_()], lr=lr)
    for step in range(steps):
        inputs, targets = (torch.stack(rows) for rows in zip(*batch_of(step), strict=True))
        optimiser.zero_grad()
        (inputs @ one.values - targets).square().mean().backward()
        optimiser.step()
    return one.values.detach()


def in_one_process(rule, steps, replicas):
    """The values after as many steps with the batches of all replicas as one."""
    one = Regression()
    state = rule.state(one.values)
    for step in range(steps):
        one.gradients.zero_()
        one.step([row for r in range(replicas) for row in batch_of(step * replicas + r)], step)
        rule.apply(one.values, one.gradients, state, Update(step + 1))
    return one.values


def staleness(statistics):
    """Of all pushes: mean, max and histogram."""
    slices = [piece for shard in statistics for piece in shard["slices"]]
    return merged(part for piece in slices for part in piece["staleness"].values())
