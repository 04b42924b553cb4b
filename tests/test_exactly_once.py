"""Every push is applied once to every shard that it addresses, whatever is lost, repeated or killed.

Clients push integers over channels that lose and repeat messages both ways, while shards are killed and others go on
from their journals; then the sums are exact. With numbers that are not looked at they are not: the test could fail.
"""

import random
from pathlib import Path

import pytest
import torch
from exactly_once import CLIENTS, PUSHES, WITHIN_S, check, family, run, summed
from marking import with_slow
from nursery import SIZE


def test_sums_are_exact_with_lost_messages_and_killed_shards(tmp_path: Path) -> None:
    check(tmp_path, seed=0)


@pytest.mark.slow
def test_without_sequence_numbers_the_sums_are_wrong(tmp_path: Path) -> None:
    _, values = run(tmp_path, seed=0, dedupe=False, kills=4)
    assert not torch.equal(values, torch.full((SIZE,), CLIENTS * summed(PUSHES), dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("seed", with_slow([0], [1, 2]))
def test_each_push_of_a_killed_client_is_applied_once_or_not_at_all(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with family(tmp_path) as found:
        found.client(0, 40, seed=seed)
        found.client(1, 10_000, seed=seed, name="worker-1.0")
        killed_at = chance.randrange(50, 200)
        while found.pushed < killed_at:
            found.take(WITHIN_S)
        found.kill("worker-1.0")
        while "worker-0.0" not in found.done:
            found.take(WITHIN_S)
        found.client(2, 5, seed=seed, loss=0.0, name="worker-2.0")  # whose leave brings all to the disk
        while "worker-2.0" not in found.done:
            found.take(WITHIN_S)
        slice_states = found.slice_states()
    possible = {summed(40) + summed(5) + summed(n): n for n in range(found.pushed + 2)}
    for slice_state in slice_states:
        assert len(set(slice_state.value.tolist())) == 1  # never in parts
        assert float(slice_state.value[0]) in possible  # each push of it up to some number, once
        assert slice_state.applied.get("worker-1.0", 0) == possible[float(slice_state.value[0])]


@pytest.mark.slow
def test_journals_are_whole_after_everything_was_killed(tmp_path: Path) -> None:
    """As when the launcher is killed, with which all roles end: the journals are whole, each push is there or not."""
    with family(tmp_path) as found:
        found.client(0, 10_000, seed=0)
        while found.pushed < 150:
            found.take(WITHIN_S)
    slice_states = found.slice_states()
    possible = {summed(n): n for n in range(found.pushed + 2)}
    for slice_state in slice_states:
        assert len(set(slice_state.value.tolist())) == 1
        assert possible[float(slice_state.value[0])] == slice_state.applied.get("worker-0.0", 0)
