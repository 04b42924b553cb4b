"""`SampleStream`."""

import subprocess
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutset.models.sample_stream import EPOCHS_KEPT, SampleStream
from cutset.models.task import TaskError

counts, batches, seeds = st.integers(1, 40), st.integers(1, 100), st.integers(0, 1000)


def drawn(stream: SampleStream, steps: int) -> list[int]:
    return torch.cat([stream.indices(step) for step in range(steps)]).tolist() if steps else []


@given(count=counts, batch=batches, seed=seeds, epochs=st.integers(0, 5))
def test_every_epoch_holds_every_sample_once(count, batch, seed, epochs):
    stream = SampleStream(count, batch=batch, seed=seed)
    steps = stream.steps(epochs)
    samples = drawn(stream, steps)
    assert len(samples) == steps * batch
    assert 0 <= epochs * count - len(samples) < batch
    for start in range(0, len(samples) - count + 1, count):
        assert sorted(samples[start : start + count]) == list(range(count))
    tail = samples[len(samples) - len(samples) % count :]
    assert max(Counter(tail).values(), default=0) <= 1


@given(count=counts, batch=batches, later=batches, seed=seeds, steps=st.integers(0, 9))
def test_batches_of_another_size_go_on_where_those_before_ended(count, batch, later, seed, steps):
    """Whatever step it is that the later ones are counted from."""
    done = steps * batch
    here = done // later
    stream = SampleStream(count, batch=later, seed=seed, first=done % later)
    begun, whole = SampleStream(count, batch=batch, seed=seed), SampleStream(count, batch=1, seed=seed)
    samples = drawn(begun, steps) + torch.cat([stream.indices(here + n) for n in range(3)]).tolist()
    assert samples == drawn(whole, done + 3 * later)
    epochs = torch.cat([stream.epochs(here + n) for n in range(3)]).tolist()
    assert epochs == [number // count for number in range(done, done + 3 * later)]


@given(count=counts, batch=batches, seed=seeds, order=st.permutations(range(12)))
def test_batches_do_not_depend_on_the_order_of_asking(count, batch, seed, order):
    stream, other = SampleStream(count, batch=batch, seed=seed), SampleStream(count, batch=batch, seed=seed)
    expected = [other.indices(step) for step in range(12)]
    for step in order:
        batch_of_step = stream.indices(step)
        assert batch_of_step.dtype == torch.int64
        assert torch.equal(batch_of_step, expected[step])
    assert len(stream._permutations) <= EPOCHS_KEPT


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(1)
    first = SampleStream(50, batch=7, seed=3).indices(9)
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    assert torch.equal(SampleStream(50, batch=7, seed=3).indices(9), first)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_epochs_and_seeds_differ():
    streams = [SampleStream(100, batch=100, seed=seed) for seed in (0, 1, 2)]
    assert len({tuple(stream.indices(epoch).tolist()) for stream in streams for epoch in (0, 1, 2)}) == 9


@pytest.mark.slow
def test_another_process_draws_the_same():
    code = (
        "from cutset.models.sample_stream import SampleStream; "
        "print(SampleStream(30, batch=8, seed=5).indices(7).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(SampleStream(30, batch=8, seed=5).indices(7).tolist())


@pytest.mark.parametrize(("count", "batch"), [(0, 1), (10, 0)])
def test_nothing_to_draw_is_refused(count, batch):
    with pytest.raises(TaskError, match=f"got {count} samples, batch {batch}"):
        SampleStream(count, batch=batch, seed=0)


def test_a_batch_before_the_first_is_refused():
    with pytest.raises(IndexError, match="got -1"):
        SampleStream(10, batch=2, seed=0).indices(-1)
