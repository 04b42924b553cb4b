"""Cuts for other graphs of a model: in evaluation, where it may compute otherwise, and for samples of other lengths."""

import functools

import pytest
import torch
import torch.nn.functional as F
from candidate_cuts import candidates
from cutting import STEP, Subject, assert_same, cuts, finest_cut, predict_cut, run_cut, run_plain
from hypothesis import given, settings
from hypothesis import strategies as st
from marking import with_slow
from torch import Tensor, nn
from zoo import Case, real

import cutset
from cutset.models.task import Data
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.worker import Worker


class AuxiliaryHead(nn.Module):
    """Like GoogLeNet: in training a second head looks at an image inside, whose positions are axes of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.side, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 3, 1), nn.Linear(4, 2)
        self.norm, self.auxiliary = nn.BatchNorm2d(3), nn.Linear(3 * 4 * 4, 2)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = torch.tanh(self.stem(x))
        out: Tensor = self.head(h.mean((2, 3)))
        if not self.training:
            return out
        return out, self.auxiliary(torch.relu(self.norm(self.side(h))).flatten(1))


class OtherAxes(nn.Module):
    """The weight of `last` has axes of 4 and 6 in training, of 8 and 3 in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 24), nn.Linear(24, 2)
        self.rows, self.columns = nn.Parameter(torch.linspace(1, 2, 4)), nn.Parameter(torch.linspace(1, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = h.view(-1, 4, 6) * self.rows[:, None] if self.training else h.view(-1, 8, 3) * self.columns
        out: Tensor = self.last(h.flatten(1))
        return out


class OnlyInEvaluation(nn.Module):
    """A scale and a buffer that training does not use, and an output of another type."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(6, 2), nn.Parameter(torch.tensor([2.0, 3.0]))
        self.register_buffer("shift", torch.tensor([0.5, 0.25]))

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        y: Tensor = self.inner(x)
        return y if self.training else {"out": y * self.scale + self.shift}


class NeverUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.spare = nn.Linear(6, 2), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def loss(output: Tensor | tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    both = output if isinstance(output, tuple) else (output, output)
    return F.mse_loss(both[0], target) + 0.3 * F.mse_loss(both[1], target)


def rows() -> Data:
    return Data((real(5, 6),), (real(5, 2),))


MODELS = {
    "auxiliary head": (AuxiliaryHead, lambda: Data((real(5, 2, 4, 4),), (real(5, 2),))),
    "other axes": (OtherAxes, rows),
    "only in evaluation": (OnlyInEvaluation, rows),
    "never used": (NeverUsed, rows),
}


@functools.cache
def subject(name: str) -> Subject:
    model, batch = MODELS[name]
    return Subject(Case(model, batch, loss), torch.float64)


def evaluated(model: nn.Module, of: Subject) -> Tensor:
    with torch.no_grad():
        output = model.eval()(*of.batch.inputs)
    found: Tensor = output["out"] if isinstance(output, dict) else output
    return found


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=10)
@given(data=st.data())
def test_a_cut_of_training_predicts_like_plain_torch(name: str, data: st.DataObject) -> None:
    of = subject(name)
    expected = evaluated(of.fresh()[0], of)
    torch.testing.assert_close(predict_cut(of, data.draw(cuts(of.graph, 3))), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", MODELS)
def test_what_was_trained_is_what_predicts(name: str) -> None:
    """Training and evaluation share the memory of every parameter, however each divides it into axes."""
    of = subject(name)
    spelled = lower_cut(of.graph, finest_cut(of.graph, 2))
    carried = lower_cut(of.evaluation, carry_cut(of.graph, spelled.cut, of.evaluation))
    trained, testing = programs(spelled, training=True), programs(carried, training=False)
    values, names = collect_state(*of.fresh(), of.constants), ["worker-0.0", "worker-0.1"]

    def role(machine: int, channel: MemoryChannel) -> list[Tensor]:
        mailbox = Mailbox(channel)
        worker = Worker(trained[machine], mailbox, names)
        worker.states.extend(testing[machine])
        worker.states.load(values.__getitem__)
        tester = Worker(testing[machine], mailbox, names, states=worker.states, tag="test.")
        worker.step(of.batch, STEP)
        worker.move(worker.values - 0.1 * worker.gradients)
        return [tensor for _, tensor in tester.predict(of.batch, STEP)]

    model, criterion = of.fresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion(model(*of.batch.inputs), *of.batch.targets).backward()
    optimizer.step()
    results = MemoryNetwork().run({names[m]: lambda channel, m=m: role(m, channel) for m in range(2)})  # type: ignore[misc]
    (output,) = [tensor for tensors in results.values() for tensor in tensors]
    torch.testing.assert_close(output, evaluated(model, of), rtol=1e-11, atol=1e-12)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("machines", [1, 2])
def test_a_replica_for_predictions_needs_no_other_model(name: str, machines: int) -> None:
    of = subject(name)
    model, criterion = of.fresh()
    (x,), (y,) = of.batch.inputs, of.batch.targets
    placement = cutset.plan(model, x, y, loss=criterion, machines=machines)
    with cutset.replica(model, placement, x, y, loss=criterion, training=False) as replica:
        found = torch.cat(list(replica.predict(of.batch)))
    torch.testing.assert_close(found, evaluated(model, of), rtol=1e-11, atol=1e-12)


LONGEST, WORDS, WIDTH = 12, 9, 8


class Language(nn.Module):
    """Attention, recurrence and convolution along a sequence, and statistics that each step overwrites."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.linspace(0, 1, LONGEST * WIDTH))
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.2, batch_first=True)
        self.cells, self.filters = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm, self.out = nn.BatchNorm1d(WIDTH) if normed else nn.Identity(), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        places = self.places.view(LONGEST, WIDTH)[: words.shape[1]]
        x = self.block(self.table(words) + places)
        x = x + self.cells(x)[0] + self.filters(x.transpose(1, 2)).transpose(1, 2)
        logits: Tensor = self.out(self.norm(x.transpose(1, 2)).transpose(1, 2))
        return logits


@functools.cache
def language(length: int, normed: bool) -> Subject:
    def sentences() -> Data:
        words = torch.randint(WORDS, (4, length + 1))
        return Data((words[:, :-1],), (words[:, 1:],))

    return Subject(
        Case(lambda: Language(normed), sentences, lambda logits, words: F.cross_entropy(logits.mT, words)),
        torch.float64,
    )


@pytest.mark.run
@pytest.mark.parametrize(("length", "normed"), with_slow([(1, False), (5, True)], [(2, True), (8, True)]))
@pytest.mark.parametrize("machines", with_slow([3], [2, 4]))
def test_a_step_of_shorter_samples_is_that_of_plain_torch(length: int, normed: bool, machines: int) -> None:
    planned, shorter = language(LONGEST, normed), language(length, normed)
    for candidate in candidates(planned.graph, uniform_cluster(machines)):
        placed = lower_cut(planned.graph, candidate.cut).cut
        carried = carry_cut(planned.graph, placed, shorter.graph)
        assert carried.owners == placed.owners, "parameters stay where they are"
        assert_same(run_cut(shorter, carried), run_plain(shorter), rtol=1e-9)
