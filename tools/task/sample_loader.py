"""`SampleLoader`: reads the batches of a run, those of a dataset in processes of its own, before they are due.

These processes are forks of the one that trains, so a dataset need not travel; tensors come back as plain arrays.
"""

import ctypes
import multiprocessing
import signal
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import BadInput, ProcessLost
from ...models.sample_stream import SampleStream
from ...models.task import Data
from .dataset_samples import DatasetSamples, Samples

AHEAD = 3  # batches that each process may read before they are due
_PR_SET_PDEATHSIG = 1  # prctl(2)
_samples: Samples | None = None  # of this process, if it is one that reads

Array = tuple[str, Any]  # a dtype of torch, and the values
Packed = tuple[list[Array], list[Array], tuple[str, ...]]


class _Failure(NamedTuple):
    """Why a batch cannot be read; an error of ours does not travel between processes."""

    code: str
    facts: str
    fix: str


class SampleLoader:
    """Reads the batches of one process that trains, while entered, as `stream` has them."""

    def __init__(self, samples: Samples, stream: SampleStream) -> None:
        self._samples, self._stream = samples, stream
        self._pool: ProcessPoolExecutor | None = None
        self._processes = samples.processes if isinstance(samples, DatasetSamples) else 0
        self._pending: dict[int, Future[Packed | _Failure]] = {}

    def read(self, number: int, upcoming: Iterable[int] = ()) -> Data:
        """Return global batch `number`. upcoming: numbers of batches that are probably next."""
        if not self._processes:
            return self._samples.rows(self._stream.indices(number), self._stream.epochs(number))
        future = self._pending.pop(number, None) or self._submit(number)
        for other in upcoming:
            if len(self._pending) < AHEAD * self._processes and other not in self._pending:
                self._pending[other] = self._submit(other)
        try:
            found = future.result()
        except BrokenProcessPool as error:
            facts = f"a process that read {self._samples} has died"
            fix = "see its log; a dataset that cannot be read after a fork needs Task(..., loaders=0)"
            raise ProcessLost("E602", facts, fix=fix) from error
        if isinstance(found, _Failure):
            raise BadInput(found.code, found.facts, fix=found.fix)
        return _unpack(found)

    @property
    def ahead(self) -> int:
        """How many upcoming batches are of use."""
        return AHEAD * self._processes

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in list((self._pool._processes or {}).values()):
                process.kill()

    def __enter__(self) -> "SampleLoader":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SampleLoader({self._samples}, {self._processes} processes)"

    def _submit(self, number: int) -> "Future[Packed | _Failure]":
        if self._pool is None:
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(
                self._processes, mp_context=context, initializer=partial(_begin, self._samples)
            )
        return self._pool.submit(_read, self._stream.indices(number).tolist(), self._stream.epochs(number).tolist())


def _begin(samples: Samples) -> None:
    """Begin as a process that reads: it ends with the one that trains."""
    global _samples
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _samples = samples


def _read(index: list[int], epochs: list[int]) -> Packed | _Failure:
    """Return the samples at `index`, or why there are none."""
    assert _samples is not None
    try:
        batch = _samples.rows(torch.tensor(index), torch.tensor(epochs))
    except BadInput as error:
        return _Failure(error.code, error.facts, error.fix)
    return [_to_array(t) for t in batch.inputs], [_to_array(t) for t in batch.targets], batch.names


def _to_array(tensor: Tensor) -> Array:
    name = str(tensor.dtype).removeprefix("torch.")
    return name, (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy()


def _to_tensor(array: Array) -> Tensor:
    name, values = array
    tensor = torch.from_numpy(np.asarray(values))
    return tensor.view(torch.bfloat16) if name == "bfloat16" else tensor


def _unpack(packed: Packed) -> Data:
    inputs, targets, names = packed
    return Data(tuple(map(_to_tensor, inputs)), tuple(map(_to_tensor, targets)), names)
