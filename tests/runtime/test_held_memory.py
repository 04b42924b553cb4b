"""Memory that grows while steps do the same is given back; what a process needs is not asked for again and again."""

import pytest
import torch

from cutset.runtime import held_memory
from cutset.runtime.held_memory import HeldMemory, read_resident_bytes, return_free_memory


def list_returns(monkeypatch: pytest.MonkeyPatch, resident: list[int]) -> list[int]:
    """Return the steps after which memory is given back. resident: what the process holds after each."""
    returned, memory = list[int](), HeldMemory()
    monkeypatch.setattr(held_memory, "return_free_memory", lambda: returned.append(step))
    monkeypatch.setattr(held_memory, "read_resident_bytes", lambda: resident[step - 1])
    for step in range(1, len(resident) + 1):  # noqa: B007  # see above
        memory.end_step()
    return returned


def test_memory_that_stays_is_given_back_after_1_2_4_8_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_returns(monkeypatch, [100] * 70) == [1, 2, 4, 8, 16, 32, 64]


def test_memory_that_grows_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_returns(monkeypatch, [100] * 17 + [106] * 15) == [1, 2, 4, 8, 16, 24, 32]
    # What it holds after that is what it needs.
    assert list_returns(monkeypatch, [100] * 33 + [120] * 31) == [1, 2, 4, 8, 16, 32, 40, 64]


def test_where_the_system_does_not_say_it_is_given_back_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_returns(monkeypatch, [0] * 20) == [1, 2, 4, 8, 16]


@pytest.mark.skipif(not read_resident_bytes(), reason="the system does not say what a process holds")
def test_what_is_freed_is_held_no_longer() -> None:
    return_free_memory()  # what other tests have left would be taken first
    before = read_resident_bytes()
    held = [torch.ones(1 << 10) for _ in range(1 << 14)]  # 64 MiB, in pieces that malloc does not map
    taken = read_resident_bytes() - before
    last, _ = held[-1], held.clear()  # by what comes last, malloc keeps what was before it
    return_free_memory()
    assert taken > 1 << 25
    assert read_resident_bytes() - before < taken / 2
    assert last.sum() == 1 << 10
