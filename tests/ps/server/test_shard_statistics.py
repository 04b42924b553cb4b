"""What a shard counts: pushes, fetches, bytes, how stale gradients were, and the rate of the updates."""

import msgspec
import torch
from shard_messages import fetch, push, shard_with_values

from cutset.ps.optimizers.rates import Scaled
from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import slice_parameters
from cutset.ps.slices.staleness import merge_histograms
from cutset.runtime.channel.message import Message


def test_staleness_is_the_difference_of_versions():
    shard = shard_with_values()
    for number, (first, second) in enumerate([(0, 0), (0, 0), (4, 2)], start=1):
        shard.handle(push(number, 0.0, 0.0, 0.0, base=first))
        shard.handle(push(number, 0.0, 0.0, 0.0, base=second, sender="worker-1.0"))
    staleness = shard.statistics()["slices"][0]["staleness"]
    assert staleness["worker-0.0"] == {"mean": 2 / 3, "max": 2, "histogram": [[0, 2], [2, 1]]}
    assert staleness["worker-1.0"] == {"mean": 7 / 3, "max": 3, "histogram": [[1, 1], [3, 2]]}
    assert merge_histograms(staleness.values()) == {
        "mean": 1.5,
        "max": 3,
        "histogram": [[0, 2], [1, 1], [2, 1], [3, 2]],
    }
    assert merge_histograms([]) == {"mean": 0.0, "max": 0, "histogram": []}


def test_statistics_are_plain_data():
    shard = shard_with_values()
    shard.handle(push(1, 0.0, 0.0, 0.0))
    shard.handle(fetch())
    statistics = shard.statistics()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(statistics)) == statistics
    assert statistics["shard"] == 0
    assert statistics["optimizer"] == msgspec.to_builtins(SGD(1.0))
    first = {key: value for key, value in statistics["slices"][0].items() if key != "staleness"}
    place = {"shard": 0, "machine": 0, "start": 0, "stop": 3, "slices": 1, "version": 1, "clock_gap": 0}
    counts = {"pushes": 1, "duplicates": 0, "late": 0, "updates": 1, "rate": 1.0, "fetches": 1}
    assert first == {**place, **counts, "bytes_in": 48, "bytes_out": 24}
    assert statistics["slices"][1]["version"] is None


def test_many_slices_of_a_machine_are_one_line_of_the_statistics():
    pieces = slice_parameters([8, 8], 1, align=1, max_elements=3)
    shard = Shard(0, pieces, ServingConfig(SGD(1.0)))
    for piece in pieces:
        values = torch.zeros(piece.size, dtype=torch.float64)
        shard.handle(Message("put", edge=piece.number, tensors=(values,), sender="worker-0.0"))
        if piece.machine == 0:
            body = {"base": 0, "number": 1, "replica": 0}
            shard.handle(Message("push", 0, 0, piece.number, body, (values,), "worker-0.0"))
    first, second = shard.statistics()["slices"]
    assert {key: first[key] for key in ("machine", "start", "stop", "slices", "version", "pushes")} == {
        "machine": 0,
        "start": 0,
        "stop": 8,
        "slices": 3,
        "version": 1,
        "pushes": 3,
    }
    assert first["staleness"]["worker-0.0"]["histogram"] == [[0, 3]]
    assert (second["version"], second["pushes"]) == (0, 0)


def test_the_mean_rate_is_that_of_the_updates():
    """lr / tau: three pushes on the same values, each finding one update more."""
    shard = shard_with_values(optimizer=Scaled(SGD(1.0)))
    for number, base in ((1, 0), (2, 0), (3, 0)):
        shard.handle(push(number, 1.0, 1.0, 1.0, base=base))
    counts = shard.statistics()["slices"][0]
    assert (counts["updates"], counts["rate"]) == (3, (1.0 + 1.0 + 0.5) / 3)
    assert shard.statistics()["slices"][1]["rate"] is None
