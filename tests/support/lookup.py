"""Training a table in threads, by rows or densely: each sample pulls the row that it names to its target."""

import torch
from in_threads import run_in_threads

from cutset.ps.client.client import Client
from cutset.ps.methods.training_loop import TrainingLoop
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import slice_parameters, slices_of_shard
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.worker.flat_gradient import FlatGradient, SparseTable

WIDTH, BIAS = 4, 3


def batch_of(number, rows):
    """Six samples: the rows that they name, among a few that move on slowly."""
    generator = torch.Generator().manual_seed(number)
    return (torch.randint(0, 12, (6,), generator=generator) + number // 4).remainder(rows).tolist()


class Lookup:
    """values: a bias [BIAS], then the table [rows, WIDTH]. A row's target is its number."""

    def __init__(self, rows, by_rows):
        self.table = SparseTable(BIAS, BIAS + rows * WIDTH, WIDTH)
        self.values = torch.zeros(self.table.stop, dtype=torch.float64)
        self.gradients = torch.zeros_like(self.values)
        self.gradient = FlatGradient(self.gradients, [self.table] if by_rows else [])
        self.by_rows = by_rows

    def step(self, batch, step):
        numbers = torch.tensor(batch)
        errors = self.table.view(self.values)[numbers] + self.values[:BIAS].sum() - numbers[:, None]
        self.table.view(self.gradients).index_add_(0, numbers, errors / len(batch))
        self.gradients[:BIAS] += errors.mean() / 10
        if self.by_rows:
            self.gradient.mark_rows(0, numbers)
        return float(errors.square().mean())


def run(method, optimizer, *, rows, by_rows, steps=40, replicas=1, shards=2):
    """Train; the final values on the shards, and the statistics of each replica's client."""
    workers = [Lookup(rows, by_rows) for _ in range(replicas)]
    tables = [[workers[0].table]] if by_rows else ()
    slices = slice_parameters([workers[0].table.stop], shards, tables=tables, max_table_elements=WIDTH * rows // 3)
    serving = method.configure_shards(optimizer, replicas)
    servers = [Shard(s, slices_of_shard(slices, s), serving) for s in range(shards)]
    statistics = {}

    def worker(replica):
        def life(channel):
            one = workers[replica]
            rate = method.local_rate(optimizer)
            client = Client(Mailbox(channel), slices, one.values, local_rate=rate, replica=replica, initial=True)
            if replica == 0:
                client.put()

            def batches(step):
                return batch_of(replica + step * replicas, rows) if step < steps else None

            loop = TrainingLoop(one, client, optimizer, batches, replicas=replicas, gradient=one.gradient)
            loop.run(method.train(loop))
            statistics[replica] = client.statistics()
            client.fetch(changed_only=True)
            client.wait()

        return life

    run_in_threads(servers, {f"worker-{r}.0": worker(r) for r in range(replicas)})
    held = sorted((s for server in servers for s in server.slice_states()), key=lambda state: state.slice.start)
    values = torch.cat([slice_state.value for slice_state in held])
    return values, [one.values for one in workers], [statistics[replica] for replica in range(replicas)]


def bytes_of(statistics):
    """Tensor bytes that a client sent, and that it was sent."""
    shards = statistics["shards"].values()
    return sum(shard["bytes_out"] for shard in shards), sum(shard["bytes_in"] for shard in shards)
