"""Tensors in memory that two processes share: in slots that are used again only when nothing shows them."""

import gc
import os
from dataclasses import dataclass

import msgspec
import pytest
import torch
from descriptors import open_files
from torch import Tensor

from cutset.runtime.channel.message import DTYPES, MalformedError, SharedSlot
from cutset.runtime.channel.shared_memory import MIN_SHARED_BYTES, MIN_SLOT_BYTES, Arena, MappedArena, Offer

SIDE = 512  # a square of float32 of this side has a MiB


@dataclass
class Pair:
    arena: Arena
    mapping: MappedArena

    def sent(self, tensor: Tensor) -> Tensor:
        """A tensor as the other side sees it."""
        slot = self.arena.put(tensor)
        assert slot is not None
        return self.mapping.tensor(slot, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))


@pytest.fixture
def pair():
    arena = Arena(16 << 20)
    yield Pair(arena, MappedArena(arena.offer))
    arena.close()


def square(value: float = 1.0) -> Tensor:
    return torch.full((SIDE, SIDE), value)


@pytest.mark.parametrize("dtype", [*DTYPES.values()], ids=str)
def test_every_dtype_comes_out_as_it_went_in(pair, dtype):
    bits = torch.randint(0, 2, (MIN_SHARED_BYTES,), dtype=torch.uint8)
    tensor = bits.view(dtype).view(2, -1)
    found = pair.sent(tensor)
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert torch.equal(found.contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8))


def test_a_tensor_of_any_stride_is_put_in_order(pair):
    x = torch.arange(SIDE * SIDE, dtype=torch.float32).view(SIDE, SIDE)
    for view in (x.t(), x[::2, 1::3], x.expand(2, SIDE, SIDE), x.flip(0)):
        assert torch.equal(pair.sent(view), view)


def test_what_was_sent_may_be_overwritten_at_once(pair):
    x = square()
    found = pair.sent(x)
    x.zero_()
    assert (found == 1).all()


def test_a_slot_is_used_again_once_nothing_shows_it(pair):
    for _ in range(100):  # fifteen have room
        pair.sent(square())
    assert pair.arena.used_bytes <= 2 << 20


def test_a_slot_is_not_used_while_anything_shows_it(pair):
    held = pair.sent(square(7.0))
    part, graph = held[3:5], (held.requires_grad_() * 2).sum()
    del held
    for i in range(8):
        pair.sent(square(float(i)))
    assert (part == 7).all()
    graph.backward()


def test_a_slot_is_not_used_while_the_sender_keeps_it(pair):
    tensor = square(1.0)
    slot = pair.arena.put(tensor)
    view = pair.arena.view_slot(slot, tensor)
    seen = pair.mapping.tensor(slot, "float32", [SIDE, SIDE])
    del seen
    tensor.fill_(2.0)
    other = pair.arena.put(tensor)
    assert other.number != slot.number
    assert torch.equal(view, square(1.0))
    del view
    assert pair.arena.put(tensor).number == slot.number


def test_what_is_reserved_is_written_in_place_and_sent_once(pair):
    reserved = pair.arena.reserve(SIDE * SIDE, torch.float32)
    reserved.fill_(3.0)
    slot = pair.arena.send_reserved(reserved)
    seen = pair.mapping.tensor(slot, "float32", [SIDE * SIDE])
    assert (seen == 3).all()
    reserved[7] = 5.0
    assert seen[7] == 5, "the same memory"
    assert pair.arena.send_reserved(reserved) is None, "the peer may give it back at any time"
    del seen
    again = pair.sent(reserved)
    assert again[7] == 5
    assert pair.arena.send_reserved(torch.ones(SIDE * SIDE)) is None


def test_what_is_reserved_is_used_again_once_nothing_shows_it(pair):
    for value in range(100):  # fifteen have room
        reserved = pair.arena.reserve(SIDE * SIDE, torch.float32)
        reserved.fill_(value)
        held = pair.sent(square(-1.0))
        assert (reserved == value).all()
        if value % 2:
            slot = pair.arena.send_reserved(reserved)
            seen = pair.mapping.tensor(slot, "float32", [SIDE * SIDE])
            del reserved
            assert (pair.sent(square(-2.0)) == -2).all()
            assert (seen == value).all()
            del seen
        del held
    assert pair.arena.used_bytes <= 4 << 20
    pair.arena.reserve(SIDE * SIDE, torch.float32)  # and is never sent
    assert not pair.arena._reserved


def test_no_memory_is_reserved_for_what_is_small_or_without_room(pair):
    assert pair.arena.reserve(MIN_SHARED_BYTES // 8 - 1, torch.float64) is None
    assert pair.arena.reserve(MIN_SHARED_BYTES // 8, torch.float64).dtype == torch.float64
    assert pair.arena.reserve(16 << 20, torch.uint8) is None


def test_without_room_a_tensor_goes_another_way(pair):
    held = [pair.sent(square(float(i))) for i in range(15)]
    assert pair.arena.put(square()) is None
    assert all((x == i).all() for i, x in enumerate(held))
    del held[3]
    assert pair.arena.put(square()) is not None


def test_sizes_that_are_no_longer_sent_need_no_room_for_ever(pair):
    for side in range(300, 900, 7):
        x = pair.sent(torch.ones(side, side))
        assert x.sum() == side * side
        del x
    assert pair.arena.used_bytes <= 16 << 20


def test_a_small_tensor_travels(pair):
    assert pair.arena.put(torch.ones(MIN_SLOT_BYTES // 4 - 1)) is None
    assert pair.arena.put(torch.ones(MIN_SLOT_BYTES // 4)) is not None


@pytest.mark.parametrize(
    "slot",
    [
        SharedSlot(0, 0),
        SharedSlot(0, 4096 + 1),
        SharedSlot(0, (16 << 20) - 4096),
        SharedSlot(-1, 4096),
        SharedSlot(1 << 20, 4096),
        SharedSlot(0, -4096),
    ],
)
def test_a_slot_that_cannot_be_is_refused(pair, slot):
    with pytest.raises(MalformedError, match="E504"):
        pair.mapping.tensor(slot, "float32", [SIDE, SIDE])


def test_memory_that_is_not_what_was_told_is_refused(pair, tmp_path):
    offer = pair.arena.offer
    other = Arena(16 << 20)
    with (tmp_path / "file").open("wb") as file:
        for change in (
            {"token": bytes(16)},
            {"size": 1 << 20},
            {"descriptor": other.offer.descriptor},
            {"descriptor": file.fileno()},
            {"descriptor": 10_000},
            {"pid": 1 << 22},
        ):
            with pytest.raises(OSError, match=r"shared memory|No such file|Permission"):
                MappedArena(msgspec.structs.replace(offer, **change))
    other.close()


def test_memory_that_could_be_cut_short_is_refused(pair):
    file = os.memfd_create("cutset")
    os.ftruncate(file, 16 << 20)
    os.pwrite(file, pair.arena.offer.token, 0)
    with pytest.raises(OSError, match="cut short"):
        MappedArena(msgspec.structs.replace(pair.arena.offer, descriptor=file))
    os.close(file)
    with pytest.raises(PermissionError):
        os.ftruncate(pair.arena.offer.descriptor, 1 << 20)


def test_tensors_outlive_the_sender(pair):
    found = pair.sent(square(3.0))
    pair.arena.close()
    assert (found == 3).all()


@pytest.mark.run
def test_an_arena_leaves_no_descriptor_behind():
    before = open_files()
    arena = Arena(1 << 20)
    MappedArena(arena.offer)
    arena.close()
    arena.close()
    assert len(open_files() - before) <= 1  # mmap keeps one of its own until it is collected
    del arena
    gc.collect()
    assert not open_files() - before


def test_an_offer_survives_the_wire(pair):
    plain = msgspec.msgpack.decode(
        msgspec.msgpack.encode(msgspec.to_builtins(pair.arena.offer, builtin_types=(bytes,)))
    )
    assert msgspec.convert(plain, Offer) == pair.arena.offer
