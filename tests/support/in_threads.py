"""A training in threads: shards that serve, workers, and a launcher that ends the shards once all workers are done."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cutset.ps.server.serve_loop import serve
from cutset.ps.server.shard import Shard
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.channel.message import LAUNCHER, Message

Life = Callable[[MemoryChannel], None]


def run_in_threads(
    shards: Sequence[Shard],
    workers: Mapping[str, Life],
    *,
    network: MemoryNetwork | None = None,
    timeout_s: float = 30.0,
) -> list[dict[str, Any]]:
    """Let each worker live, on a channel with its name; the shards' statistics. The first error of a role is raised.

    timeout_s: the longest that the launcher waits for the next worker's end.
    """

    def until_the_end(life: Life) -> Life:
        def worker(channel: MemoryChannel) -> None:
            life(channel)
            channel.send(LAUNCHER, Message("done"))

        return worker

    def server(shard: Shard) -> Callable[[MemoryChannel], dict[str, Any]]:
        return lambda channel: serve(shard, channel, interval_s=30.0)

    def launcher(channel: MemoryChannel) -> None:
        for _ in workers:
            channel.receive(timeout_s)
        for name in served:
            channel.send(name, Message("finish"))

    served = {f"shard-{shard.index}": server(shard) for shard in shards}
    living = {name: until_the_end(life) for name, life in workers.items()}
    results = (network or MemoryNetwork()).run({**served, **living, LAUNCHER: launcher})
    return [results[name] for name in served]
