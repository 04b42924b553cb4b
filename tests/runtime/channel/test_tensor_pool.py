"""Memory that peers read in slot: a tensor is copied there once, and is found where it lies as long as it is shown."""

import gc
import os

import pytest
import torch
from descriptors import open_files
from torch import Tensor

from cutset.runtime.channel.message import MalformedError, SharedSlot
from cutset.runtime.channel.shared_memory import MIN_SHARED_BYTES, PAGE, Arena, MappedArena
from cutset.runtime.channel.tensor_pool import TensorPool

COUNT = 1 << 18  # a MiB of float32


class Shown:
    """A process with a pool, and a peer that reads it."""

    def __init__(self) -> None:
        self.pool = TensorPool(16 << 20)
        self.arena = Arena(1 << 20)
        self.mapping = MappedArena(self.arena.offer, self.pool.offer)

    def lent(self, tensor: Tensor) -> Tensor:
        """As the peer sees it."""
        offset = self.pool.offset(tensor)
        assert offset is not None
        slot = self.arena.lend(tensor, offset)
        assert slot is not None
        return self.mapping.tensor(slot, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))

    def close(self) -> None:
        self.arena.close()
        self.pool.close()


@pytest.fixture
def shown():
    found = Shown()
    yield found
    found.close()


def ramp(start: float = 0.0) -> Tensor:
    return torch.arange(COUNT, dtype=torch.float32) + start


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
def test_a_copy_is_equal_and_its_own(shown, dtype):
    x = torch.ones(2, MIN_SHARED_BYTES, dtype=dtype)
    copy = shown.pool.copy(x.t())
    assert (copy.dtype, copy.shape) == (dtype, x.t().shape)
    assert copy.is_contiguous()
    x.zero_()
    assert (copy == 1).all()
    assert shown.pool.offset(copy) is not None


def test_what_lies_elsewhere_is_not_found(shown):
    copy = shown.pool.copy(ramp())
    assert shown.pool.offset(ramp()) is None
    assert shown.pool.offset(copy[1:]) is None  # not at a page
    assert shown.pool.offset(copy[: MIN_SHARED_BYTES // 4 - 1]) is None
    assert shown.pool.offset(copy.view(2, -1).t()) is None
    assert shown.pool.offset(copy[PAGE // 4 :]) == shown.pool.offset(copy) + PAGE
    assert shown.pool.offset(TensorPool(16 << 20).copy(ramp())) is None


def test_what_is_small_or_has_no_room_is_an_ordinary_copy(shown):
    small = torch.ones(MIN_SHARED_BYTES // 4 - 1)
    assert shown.pool.offset(shown.pool.copy(small)) is None
    held = [shown.pool.copy(ramp(i)) for i in range(16)]
    assert [shown.pool.offset(x) is None for x in held] == [False] * 15 + [True]
    assert all(torch.equal(x, ramp(i)) for i, x in enumerate(held))
    del held[3]
    assert shown.pool.offset(shown.pool.copy(ramp())) == PAGE + 3 * 4 * COUNT


def test_a_tensor_is_read_where_it_lies(shown):
    copy = shown.pool.copy(ramp())
    seen = shown.lent(copy)
    assert torch.equal(seen, copy)
    copy.zero_()  # which nobody should do: it shows that nothing was copied
    assert not seen.any()


def test_what_is_lent_is_kept_until_it_is_given_back(shown):
    copy, other = shown.pool.copy(ramp()), shown.pool.copy(ramp(1.0))
    at = shown.pool.offset(copy)
    seen, again = shown.lent(copy), shown.lent(copy)
    part = seen[5:7]
    del copy, seen
    for _ in range(3):
        shown.arena.reclaim()
        assert shown.pool.offset(shown.pool.copy(other)) not in (at, None)
    assert part.tolist() == [5.0, 6.0]
    del part, again
    shown.arena.reclaim()
    assert shown.pool.offset(shown.pool.copy(other)) == at


def test_slots_are_used_again(shown):
    copy = shown.pool.copy(ramp())
    for _ in range(10_000):
        assert shown.lent(copy)[0] == 0
    assert shown.arena.used_bytes == 0


def test_what_was_read_is_not_counted_as_the_readers_memory_but_for_the_first_of_it(shown, monkeypatch):
    monkeypatch.setattr("cutset.runtime.channel.shared_memory.KEPT_BYTES", 5 << 20)
    first, copy = shown.pool.copy(torch.ones(4 << 18)), shown.pool.copy(torch.ones(8 << 18))
    before = resident()
    seen = shown.lent(copy)
    assert seen.sum() == 8 << 18
    assert resident() - before > 7 << 20
    del seen
    assert resident() - before < 1 << 20
    assert shown.lent(copy).sum() == 8 << 18
    assert shown.lent(first).sum() == 4 << 18
    assert 3 << 20 < resident() - before < 5 << 20
    at = shown.pool.offset(first)
    del first
    shown.arena.reclaim()
    first = shown.pool.copy(torch.full((4 << 18,), 2.0))
    assert shown.pool.offset(first) == at
    assert shown.lent(first).sum() == 8 << 18  # its pages are the pool's, not a copy of what was there


def resident() -> int:
    """Bytes of this process's memory that are there."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_little_memory_stays_where_nothing_lies(monkeypatch):
    monkeypatch.setattr("cutset.runtime.channel.tensor_pool.MAX_IDLE_BYTES", 2 << 20)
    pool = TensorPool(64 << 20)
    taken = lambda: os.fstat(pool.offer.descriptor).st_blocks * 512  # noqa: E731
    for _ in range(3):
        held = [pool.copy(ramp(i)) for i in range(20)]
        assert taken() == (20 << 20) + PAGE
        assert all(torch.equal(x, ramp(i)) for i, x in enumerate(held))
        del held
        assert taken() == (2 << 20) + PAGE
    assert "20971520 bytes taken, 2097152 idle" in repr(pool)


@pytest.mark.parametrize("slot", [SharedSlot(0, 0, True), SharedSlot(0, PAGE + 1, True), SharedSlot(-1, PAGE, True)])
def test_a_slot_that_cannot_be_is_refused(shown, slot):
    with pytest.raises(MalformedError, match="E504"):
        shown.mapping.tensor(slot, "float32", [COUNT])


def test_a_slot_in_a_pool_that_was_not_told_of_is_refused(shown):
    with pytest.raises(MalformedError, match="of 0 bytes"):
        MappedArena(shown.arena.offer).tensor(SharedSlot(0, PAGE, True), "float32", [COUNT])


@pytest.mark.run
def test_it_leaves_no_descriptor_behind_and_its_tensors_outlive_it():
    gc.collect()
    before = open_files()
    pool = TensorPool(16 << 20)
    copy = pool.copy(ramp())
    pool.close()
    pool.close()
    del pool
    assert torch.equal(copy, ramp())
    del copy
    gc.collect()
    assert not open_files() - before
