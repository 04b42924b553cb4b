"""The process that reads batches: requests and replies that are larger than what a socket holds."""

import os
import select
import time
from unittest.mock import Mock

import pytest
import torch

from cutset.models.task import Data
from cutset.tools.samples import reader_process
from cutset.tools.samples.reader_process import ReaderProcess, fork_readers

SAMPLES = 1 << 17  # whose numbers alone are more than half a megabyte


class Doubles:
    """Reads for each number its double."""

    what = "the doubles"

    def read(self, number: int, index: list[int], epochs: list[int]) -> Data:
        numbers = torch.tensor(index)
        return Data((2.0 * numbers, numbers + torch.tensor(epochs)))


@pytest.mark.parametrize("shares", [True, False])
def test_requests_and_batches_that_fill_the_socket_pass_each_other(
    shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader sends a batch while it is asked for more: neither may wait for the other to read first."""
    if not shares:
        monkeypatch.setattr(reader_process, "MappedArena", Mock(side_effect=OSError))
    forks = fork_readers(Doubles())
    reader = ReaderProcess(forks)
    try:
        for number in range(4):
            reader.request(number, list(range(number, SAMPLES + number)), [number] * SAMPLES)
        reader.forget(1)
        for number in (2, 0, 3):
            batch = reader.take(number)
            assert isinstance(batch, Data)
            expected = torch.arange(number, SAMPLES + number)
            assert torch.equal(batch.inputs[0], 2.0 * expected)
            assert torch.equal(batch.inputs[1], expected + number)
        assert reader.waiting == 0
    finally:
        reader.close()
        forks.close()


class Counted(Doubles):
    """Writes a byte for each batch that it has read."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read(self, number: int, index: list[int], epochs: list[int]) -> Data:
        batch = super().read(number, index, epochs)
        os.write(self._file, bytes([number]))
        return batch


def test_large_batches_are_read_ahead_while_nobody_takes_them() -> None:
    """Each is more than a socket holds."""
    done, file = os.pipe()
    forks = fork_readers(Counted(file))
    reader = ReaderProcess(forks)
    try:
        for number in range(4):
            reader.request(number, list(range(SAMPLES)), [number] * SAMPLES)
        read = b""
        while len(read) < 4:
            assert select.select([done], [], [], 30.0)[0]
            read += os.read(done, 4)
        assert read == bytes(range(4))
        batches = [reader.take(number) for number in range(4)]
    finally:
        reader.close()
        forks.close()
        os.close(done)
        os.close(file)
    for number, batch in enumerate(batches):  # they stay when the process has gone
        assert isinstance(batch, Data)
        assert torch.equal(batch.inputs[1], torch.arange(SAMPLES) + number)


@pytest.mark.run
def test_batches_that_nobody_takes_give_their_memory_back() -> None:
    """As of steps that a method has skipped, whether they were read by then or not."""
    forks = fork_readers(Doubles())
    reader = ReaderProcess(forks)
    try:
        slots = set[int]()
        for number in range(40):
            reader.request(2 * number, list(range(SAMPLES)), [0] * SAMPLES)
            reader.request(2 * number + 1, list(range(SAMPLES)), [0] * SAMPLES)
            if number % 2:
                reader.forget(2 * number)
            batch = reader.take(2 * number + 1)
            if not number % 2:
                reader.forget(2 * number)
            assert isinstance(batch, Data)
            slots.add(batch.inputs[0].data_ptr())
            del batch
        assert len(slots) < 10
    finally:
        reader.close()
        forks.close()


class Slow(Doubles):
    """Reads after a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def read(self, number: int, index: list[int], epochs: list[int]) -> Data:
        time.sleep(self._seconds)
        return super().read(number, index, epochs)


@pytest.mark.run
def test_a_process_says_how_long_it_was_waited_for() -> None:
    forks = fork_readers(Slow(0.6))
    reader = ReaderProcess(forks)
    try:
        reader.request(0, [1, 2], [0, 0])
        reader.take(0)
        assert reader.waited_s > 0.15
        reader.request(1, [1, 2], [0, 0])
        select.select([reader._socket], [], [])  # until it has read
        reader.take(1)
        assert reader.waited_s < 0.15
    finally:
        reader.close()
        forks.close()
