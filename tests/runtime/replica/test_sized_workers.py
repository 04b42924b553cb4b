"""A machine's programs for batches of several sizes: the batch chooses, and parameters are the same for all."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cutting import pipeline
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.replica.sized_workers import SizedWorkers
from cutset.runtime.worker.program import Program, programs

NAMES, LENGTHS, BATCH, WIDTH = ["worker-0.0", "worker-0.1"], (6, 2, 3), 4, 5


def make_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)]
        return nn.Sequential(*layers).double()


def samples(length: int, count: int = BATCH) -> Data:
    generator = torch.Generator().manual_seed(length)
    shapes = (count, length, WIDTH), (count, length, 2)
    x, y = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return Data((x,), (y,))


@pytest.fixture(scope="module")
def compiled() -> tuple[list[list[Program]], list[list[Program]]]:
    """Training and evaluation programs, by machine and length."""

    def graph(length: int, loss: Callable[..., Tensor] | None):  # type: ignore[no-untyped-call, no-untyped-def]
        batch = samples(length)
        return capture(make_model(), loss, batch.inputs, batch.targets if loss else ())[0]

    planned = graph(LENGTHS[0], F.mse_loss)
    cut = lower_cut(planned, pipeline(planned, 2)).cut
    of_length = [
        programs(lower_cut(other, carry_cut(planned, cut, other)), training=loss is not None)
        for loss in (F.mse_loss, None)
        for other in (graph(length, loss) for length in LENGTHS)
    ]
    by_machine = [list(found) for found in zip(*of_length, strict=True)]
    count = len(LENGTHS)
    return [found[:count] for found in by_machine], [found[count:] for found in by_machine]


def run(role: Callable[[int, Mailbox], object]) -> list[object]:
    def start(machine: int) -> Callable[[MemoryChannel], object]:
        return lambda channel: role(machine, Mailbox(channel))

    found = MemoryNetwork().run({name: start(machine) for machine, name in enumerate(NAMES)})  # type: ignore[misc]
    return [found[name] for name in NAMES]


def test_steps_of_changing_lengths_are_those_of_plain_torch(
    compiled: tuple[list[list[Program]], list[list[Program]]],
) -> None:
    order = (6, 2, 2, 3, 6, 3)
    values = collect_state(make_model(), F.mse_loss, {})

    def role(machine: int, mailbox: Mailbox) -> object:
        workers = SizedWorkers(compiled[0][machine], mailbox, NAMES)
        states = workers.first.states
        states.load(values.__getitem__)
        losses = [workers.step(samples(length, 2 * BATCH), step) for step, length in enumerate(order)]
        return losses, {name: piece for (name, _), piece in states.trained(states.gradients).items()}

    (_, first), (losses, second) = run(role)  # type: ignore[misc]
    model = make_model()
    expected = [F.mse_loss(model(batch.inputs[0]), *batch.targets) for batch in (samples(n, 2 * BATCH) for n in order)]
    torch.stack(expected).sum().backward()  # type: ignore[no-untyped-call]
    assert losses == pytest.approx([loss.item() for loss in expected])
    for name, parameter in model.named_parameters():
        torch.testing.assert_close((first | second)[name].view_as(parameter), parameter.grad)


def test_outputs_come_in_the_order_of_the_batches(compiled: tuple[list[list[Program]], list[list[Program]]]) -> None:
    order = (2, 6, 6, 3, 2)
    values = collect_state(make_model(), F.mse_loss, {})

    def role(machine: int, mailbox: Mailbox) -> object:
        workers = SizedWorkers(compiled[1][machine], mailbox, NAMES)
        workers.first.states.load(values.__getitem__)
        return [pieces for _, pieces in workers.stream(map(samples, order), 0)]

    _, outputs = run(role)
    for pieces, length in zip(outputs, order, strict=True):  # type: ignore[call-overload]
        ((_, output),) = pieces
        torch.testing.assert_close(output.view(BATCH, length, 2), make_model()(*samples(length).inputs).detach())


def test_a_size_that_none_is_for_is_refused_with_all_that_there_are(
    compiled: tuple[list[list[Program]], list[list[Program]]],
) -> None:
    def role(machine: int, mailbox: Mailbox) -> object:
        workers = SizedWorkers(compiled[0][machine], mailbox, NAMES)
        assert workers.has_program(samples(3, 2 * BATCH))
        assert not workers.has_program(samples(3, BATCH + 1))
        with pytest.raises(BadInput, match=r"E343: a batch of 4 .*\[7, 5\].* \[6, 5\].*\[2, 5\]"):
            workers.step(samples(7), 0)
        return True

    assert run(role) == [True, True]
