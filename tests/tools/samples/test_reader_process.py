"""The process that reads batches: requests and replies that are larger than what a socket holds."""

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
