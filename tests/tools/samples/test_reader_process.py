"""The process that reads batches: requests and replies that are larger than what a socket holds."""

import select
import time

import torch

from cutset.models.task import Data
from cutset.tools.samples.reader_process import ReaderProcess

SAMPLES = 1 << 17  # whose numbers alone are more than half a megabyte


class Doubles:
    """Reads for each number its double."""

    what = "the doubles"

    def read(self, number: int, index: list[int], epochs: list[int]) -> Data:
        numbers = torch.tensor(index)
        return Data((2.0 * numbers, numbers + torch.tensor(epochs)))


def test_requests_and_batches_that_fill_the_socket_pass_each_other() -> None:
    """The reader sends a batch while it is asked for more: neither may wait for the other to read first."""
    reader = ReaderProcess(Doubles())
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


class Slow(Doubles):
    """Reads after a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def read(self, number: int, index: list[int], epochs: list[int]) -> Data:
        time.sleep(self._seconds)
        return super().read(number, index, epochs)


def test_a_process_says_how_long_it_was_waited_for() -> None:
    reader = ReaderProcess(Slow(0.6))
    try:
        reader.request(0, [1, 2], [0, 0])
        reader.take(0)
        assert reader.times.waited_s > 0.15
        assert 0.0 <= reader.times.queued <= 1.0
        reader.request(1, [1, 2], [0, 0])
        select.select([reader._socket], [], [])  # until it has read
        reader.take(1)
        assert reader.times.waited_s < 0.15
    finally:
        reader.close()
