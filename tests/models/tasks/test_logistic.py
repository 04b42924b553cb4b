"""`logistic`: its mean loss over all samples is the regularised objective, written out."""

import pytest
import torch
from torch import Tensor, nn

from cutset.models import TaskError, logistic
from cutset.runtime.worker.uncut_worker import find_sparse_tables


@pytest.fixture
def file(tmp_path):
    generator = torch.Generator().manual_seed(0)
    lines = []
    for number in range(40):
        kept = (torch.randperm(12, generator=generator)[: 1 + number % 5].sort().values + 1).tolist()
        lines.append(f"{'+1' if number % 3 else '-1'} " + " ".join(f"{j}:{0.5 + j}" for j in kept))
    path = tmp_path / "train"
    path.write_text("\n".join(lines))
    return path


def dense(path) -> tuple[Tensor, Tensor]:
    """Samples [n, features + 1] and labels -1, 1 [n]."""
    rows = [line.split() for line in path.read_text().splitlines()]
    samples = torch.zeros(len(rows), 13)
    for row, words in zip(samples, rows, strict=True):
        for word in words[1:]:
            index, value = word.split(":")
            row[int(index)] = float(value)
    return samples, torch.tensor([float(words[0]) for words in rows])


@pytest.mark.parametrize("l2", [None, 0.0, 0.3])
@pytest.mark.parametrize("bias", [False, True])
def test_the_mean_over_all_samples_is_the_objective(file, l2, bias):
    task = logistic(f"libsvm:{file}", l2=l2, bias=bias)
    model = task.build(seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(3))
        model.weight.weight[0] = 0
    data = task.data("train")
    samples, labels = dense(file)
    weight = model.weight.weight.detach()[:, 0]
    scores = samples @ weight + (model.bias.item() if bias else 0)
    present = samples.abs().sum(0) > 0  # a feature that no sample has bears no penalty
    lam = 1 / len(samples) if l2 is None else l2
    expected = nn.functional.softplus(-labels * scores).mean() + lam / 2 * weight[present].square().sum()
    outputs = model(*data.inputs)
    torch.testing.assert_close(task.loss(outputs, *data.targets), expected)
    assert task.correct(outputs[0], *data.targets) == int(((scores > 0) == (labels > 0)).sum())


def test_several_classes(tmp_path):
    path = tmp_path / "three"
    path.write_text("7 1:1\n2 2:1\n5 1:1 3:2\n2 3:1\n")
    task = logistic(f"libsvm:{path}", l2=0.0)
    model, data = task.build(seed=0), task.data("train")
    assert data.targets[0].tolist() == [2, 0, 1, 0]
    with torch.no_grad():
        nn.init.normal_(model.weight.weight, generator=torch.Generator().manual_seed(3))
        model.weight.weight[0] = 0
    scores = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 2], [0, 0, 0, 1]]).float() @ model.weight.weight
    outputs = model(*data.inputs)
    torch.testing.assert_close(outputs[0], scores)
    torch.testing.assert_close(task.loss(outputs, *data.targets), nn.functional.cross_entropy(scores, *data.targets))
    assert task.correct(outputs[0], *data.targets) == int((scores.argmax(1) == data.targets[0]).sum())


def test_the_weights_are_a_table(file):
    task = logistic(f"libsvm:{file}")
    model = task.build(seed=0)
    loss = task.loss(model(*task.data("train").inputs), *task.data("train").targets)
    (table,) = find_sparse_tables(loss, dict(model.named_parameters()))
    assert (table.rows, table.width) == (13, 1)


def test_the_test_samples_are_in_the_file_beside(file):
    assert len(logistic(f"libsvm:{file}").data("test")) == 40
    (file.parent / "test").write_text("-1 1:1\n+1 2:1 13:1\n")
    other = file.rename(file.parent / "set.train")
    assert len(logistic(f"libsvm:{other}").data("test")) == 40
    (file.parent / "set.test").write_text("-1 1:1\n+1 2:1 13:1\n")
    (file.parent / "again").write_text(other.read_text())
    (file.parent / "again.t").write_text("-1 1:1\n")
    assert len(logistic(f"libsvm:{file.parent / 'again'}").data("test")) == 1


def test_a_feature_of_the_tests_alone_has_a_row(file):
    file.with_name("train.t").write_text("-1 1:1 20:1 21:1 22:1 23:1 24:1\n")
    task = logistic(f"libsvm:{file}")
    assert task.build(seed=0).weight.weight.shape == (25, 1)
    assert task.data("train").inputs[0].shape == (40, 6)


def test_without_data_it_can_be_planned_but_not_read():
    task = logistic()
    assert task.build(seed=0, device="meta").weight.weight.shape == (124, 1)
    example = task.example(3)
    model = task.build(seed=0)
    assert task.loss(model(*example.inputs), *example.targets).shape == ()
    with pytest.raises(TaskError, match="needs its train samples") as caught:
        task.data("train")
    assert caught.value.fix == "--data libsvm:FILE"


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"data": "mnist:DIR"}, "'mnist' is not known; known: libsvm"),
        ({"data": "libsvm:"}, "not of the form kind:FILE"),
        ({"features": 0}, "features is 0"),
        ({"entries": 2.5}, "entries is 2.5"),
        ({"l2": -1.0}, "l2 is -1.0"),
        ({"l2": float("nan")}, "l2 is nan"),
    ],
)
def test_wrong_arguments_are_named(arguments, facts):
    with pytest.raises(TaskError, match=facts) as caught:
        logistic(**arguments)
    assert caught.value.fix


def test_too_few_entries_are_named(file):
    with pytest.raises(TaskError, match="a sample has 5 entries; entries is 4"):
        logistic(f"libsvm:{file}", entries=4)
    task = logistic(f"libsvm:{file}", features=3)
    with pytest.raises(TaskError, match=r"train:\d+: index \d+; there are 3 features"):
        task.data("train")
