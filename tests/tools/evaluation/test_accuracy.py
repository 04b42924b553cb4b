"""Right answers of a cut and of an uncut model: every sample once, the last batch filled up."""

import pytest
import torch
from cutting import finest_cut, load, subject

from cutset.models.task import Data, Task, make_example_batches
from cutset.partition.dataflow.dataflow import lower_cut
from cutset.partition.dataflow.evaluation_cut import evaluation_cut
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.replica import Replica
from cutset.runtime.worker.uncut_worker import UncutWorker
from cutset.runtime.worker.worker import Worker
from cutset.tools.evaluation.accuracy import count_correct, count_correct_uncut, iterate_batches

NAMES = ["worker-0.0", "worker-0.1"]
TASK = Task("any", lambda: subject("mlp").fresh()[0], torch.nn.functional.cross_entropy, make_example_batches(((12,),)))


def samples(count: int) -> Data:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, 12, dtype=torch.float64, generator=generator)
    return Data((inputs,), (torch.randint(0, 5, (count,), generator=generator),))


def test_the_last_batch_is_filled_up() -> None:
    found = [batch.inputs[0][:, 0].tolist() for batch in iterate_batches(samples(5), 2)]
    first = samples(5).inputs[0][:, 0].tolist()
    assert found == [first[:2], first[2:4], [first[4]] * 2]


@pytest.mark.parametrize("count", [1, 6, 13, 60])
def test_a_cut_model_has_as_many_correct_answers_as_plain_torch(count: int) -> None:
    of, data = subject("mlp"), samples(count)
    model, loss = of.fresh()
    with torch.no_grad():
        expected = int((model.eval()(*data.inputs).argmax(1) == data.targets[0]).sum())
    assert count_correct_uncut(UncutWorker(model, loss), TASK, data, 4) == expected
    spelled = lower_cut(of.graph, finest_cut(of.graph, 2))
    parts = programs(lower_cut(of.evaluation, evaluation_cut(of.graph, spelled.cut, of.evaluation)), training=False)
    with Replica(parts) as replica:
        load(replica, of)
        states = [worker.states for worker in replica.workers]

    def role(machine: int, channel: MemoryChannel) -> list[int | None]:
        worker = Worker(parts[machine], Mailbox(channel), NAMES, states=states[machine])
        return [count_correct(worker, TASK, data, step) for step in (1, 2)]

    found = MemoryNetwork().run({n: lambda channel, m=m: role(m, channel) for m, n in enumerate(NAMES)})  # type: ignore[misc]
    assert sorted(found.values(), key=str) == sorted([[expected] * 2, [None] * 2], key=str)
