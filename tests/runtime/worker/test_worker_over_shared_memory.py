"""Steps whose tensors go through shared memory, over real channels: the result is that of plain torch."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from candidate_cuts import candidates
from cutting import STEP, Outcome, Subject, assert_same, load, run_plain
from torch import nn
from zoo import Case

from cutset.models.task import Data
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.channel.curve import make_keys
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.zmq_channel import ZmqChannel
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.program import Program, programs
from cutset.runtime.worker.worker import Worker

T = TypeVar("T")
BATCH, WIDTH, CLASSES = 512, 128, 10
TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 3e-2}  # of the largest entry


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.Tanh(),
        nn.Dropout(0.1),
        nn.Linear(WIDTH, WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, CLASSES),
    )


def batch() -> Data:
    return Data((torch.randn(BATCH, WIDTH),), (torch.randint(0, CLASSES, (BATCH,)),))


class Connected(Replica):
    """A replica whose workers talk over ZeroMQ, as in processes of their own; each keeps to its thread."""

    def __init__(self, parts: Sequence[Program], channels: Sequence[ZmqChannel]) -> None:
        super().__init__(parts)
        names, rng_lock = [channel.name for channel in channels], threading.Lock()
        self.workers = [
            Worker(part, Mailbox(channel), names, seed=0, rng_lock=rng_lock)
            for part, channel in zip(parts, channels, strict=True)
        ]
        self._own = [ThreadPoolExecutor(1) for _ in parts]

    def _each(self, work: Callable[[Worker], T]) -> list[T]:
        futures = [thread.submit(work, worker) for thread, worker in zip(self._own, self.workers, strict=True)]
        return [future.result(60) for future in futures]

    def __exit__(self, *error: Any) -> None:
        for thread in self._own:
            thread.shutdown()
        super().__exit__(*error)


@contextmanager
def connected(parts: Sequence[Program]) -> Iterator[tuple[Connected, list[ZmqChannel]]]:
    names = [f"worker-0.{part.machine}" for part in parts]
    keys = make_keys(names)
    with ExitStack() as stack:
        channels = [stack.enter_context(ZmqChannel(name, "job", keys[name])) for name in names]
        for channel in channels:
            channel.introduce({other.name: other.endpoint for other in channels if other is not channel})
        yield stack.enter_context(Connected(parts, channels)), channels


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("micros", [1, 3])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_steps_through_shared_memory_train_like_plain_torch(dtype: torch.dtype, micros: int) -> None:
    of = Subject(Case(wide, batch, F.cross_entropy), dtype)
    # Not the meshes: cut sums would round bfloat16 in another order many times over.
    found = [c.cut for c in candidates(of.graph, uniform_cluster(2)) if c.name in ("slices", "even stages")]
    assert len(found) == 2
    for cut in found:
        with connected(programs(lower_cut(of.graph, cut), training=True)) as (replica, channels):
            load(replica, of)
            for _ in range(3):  # the first messages agree on the memory
                loss = replica.step(of.several(micros), STEP)
            arenas = [c._same_host.arena(other.name) for c in channels for other in channels if other is not c]
            assert all(arena is not None and arena.used_bytes for arena in arenas)
            assert_same(Outcome(loss, replica.gradients(), {}), run_plain(of, micros=micros), rtol=TOLERANCES[dtype])


def test_memory_is_used_again_from_step_to_step() -> None:
    of = Subject(Case(wide, batch, F.cross_entropy), torch.float32)
    (cut,) = (c.cut for c in candidates(of.graph, uniform_cluster(2)) if c.name == "even stages")
    with connected(programs(lower_cut(of.graph, cut), training=True)) as (replica, channels):
        load(replica, of)
        used = []
        for _ in range(12):
            replica.step(of.batch, STEP)
            (arena,) = {channels[0]._same_host.arena(channels[1].name)}
            used.append(0 if arena is None else arena.used_bytes)
    assert used[-1] == used[4] > 0
