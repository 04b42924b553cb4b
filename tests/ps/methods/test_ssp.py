"""Stale synchronous parallel: no replica is ever further ahead of the slowest than it may be."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from regression import Regression, plain_sgd, run

from cutset.errors import UsageError
from cutset.ps.methods.ssp import SSP
from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.step_clocks import StepClocks


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("replicas", [2, 4])
def test_clocks_are_never_further_apart_than_the_staleness(
    staleness: int, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replica 0 takes a step only when all others can take none: the gap is used to the full, and no further."""
    ahead, begun, steps, shards = threading.Condition(), [0] * replicas, 12, 2
    pushed = Counter[tuple[int, int]]()  # slices that have the gradient of a replica's step
    record_push = StepClocks.record_push

    def record(clocks: StepClocks, replica: int, step: int) -> None:
        record_push(clocks, replica, step)
        with ahead:
            pushed[replica, step] += 1
            ahead.notify_all()

    def before(replica: int) -> Callable[[int], None]:
        def begin(step: int) -> None:
            with ahead:
                begun[replica] = step
                ahead.notify_all()
                least = min(step + staleness, steps - 1)
                if replica == 0 and staleness:
                    others = [(other, least) for other in range(1, replicas)]
                    assert ahead.wait_for(lambda: all(pushed[one] == shards for one in others), timeout=30)
                if replica == 0:
                    assert ahead.wait_for(lambda: all(other >= least for other in begun[1:]), timeout=30)
                    assert all(other <= step + staleness for other in begun[1:])

        return begin

    monkeypatch.setattr(StepClocks, "record_push", record)
    workers = [Regression(before(r)) for r in range(replicas)]
    _, statistics, reports = run(
        SSP(staleness), SGD(0.001), steps=steps, replicas=replicas, workers=workers, shards=shards
    )
    pieces = [piece for shard in statistics for piece in shard["slices"]]
    assert len(pieces) == shards
    assert {piece["clock_gap"] for piece in pieces} == {staleness}
    assert [len(rows) for rows in reports] == [steps] * replicas


def test_one_replica_equals_plain_sgd():
    values, _, _ = run(SSP(2), SGD(0.02), steps=50)
    torch.testing.assert_close(values, plain_sgd(0.02, 50), rtol=0, atol=1e-10)


def test_a_wrong_staleness_is_named():
    with pytest.raises(UsageError, match="staleness is -1") as caught:
        SSP(-1)
    assert "ssp:staleness=0" in caught.value.fix


def test_it_continues_at_any_step():
    values, _, _ = run(SSP(1), SGD(0.02), steps=40, parts=4)
    torch.testing.assert_close(values, plain_sgd(0.02, 40), rtol=0, atol=1e-10)
