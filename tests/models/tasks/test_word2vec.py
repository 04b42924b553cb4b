"""`word2vec`: the loss written out, its tables, and that it learns what words stand beside each other."""

import pytest
import torch
from torch.nn.functional import logsigmoid

from cutset.models import TaskError, WordVectors, word2vec
from cutset.runtime.worker.uncut_worker import find_sparse_tables


@pytest.fixture
def text(tmp_path):
    """Two topics, whose words never meet."""
    generator = torch.Generator().manual_seed(0)
    topics = [[f"{kind}{i}" for i in range(6)] for kind in ("sea", "land")]
    lines = [
        " ".join(topics[number % 2][i] for i in torch.randint(0, 6, (8,), generator=generator)) for number in range(400)
    ]
    path = tmp_path / "text"
    path.write_text("\n".join(lines))
    return path


def test_the_loss_is_that_of_negative_sampling():
    task = word2vec(dimension=3, negatives=2)
    model = task.build(seed=0)
    with torch.no_grad():
        model.context.weight.normal_(generator=torch.Generator().manual_seed(1))
    centre, context, negatives = torch.tensor([4, 7]), torch.tensor([1, 2]), torch.tensor([[5, 6], [8, 1]])
    inside, outside = model.centre.weight, model.context.weight
    expected = 0.0
    for c, o, others in zip(centre, context, negatives, strict=True):
        expected -= logsigmoid(outside[o] @ inside[c]) / 2
        expected -= sum(logsigmoid(-outside[n] @ inside[c]) for n in others) / 2
    scores = model(centre.int(), context.int(), negatives.int())
    torch.testing.assert_close(task.loss(scores), expected)
    right = sum(bool((row[0] > row[1:]).all()) for row in scores)
    assert task.correct(scores) == right


def test_both_tables_have_sparse_gradients():
    task = word2vec(dimension=4)
    model = task.build(seed=0)
    tables = find_sparse_tables(task.loss(model(*task.example(2).inputs)), dict(model.named_parameters()))
    assert [(table.rows, table.width) for table in tables] == [(30_000, 4)] * 2


def test_words_of_one_topic_come_to_lie_together(text):
    task = word2vec(f"text:{text}", dimension=8, min_count=1, sample=0.0, negatives=3)
    assert sorted(task.words) == sorted(f"{kind}{i}" for kind in ("sea", "land") for i in range(6))
    model, data = task.build(seed=0), task.data("train")
    optimiser = torch.optim.SGD(model.parameters(), lr=2.0)
    for index in torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).split(64):
        optimiser.zero_grad()
        task.loss(model(*data.rows(index).inputs)).backward()
        optimiser.step()
    vectors = WordVectors(task.words, model.centre.weight)
    for word in task.words:
        assert {other.rstrip("012345") for other, _ in vectors.nearest(word, 5)} == {word.rstrip("012345")}


def test_example_and_data_are_alike(text):
    task = word2vec(f"text:{text}", negatives=3, min_count=1)
    for split in ("train", "test"):
        rows = task.data(split).rows(torch.arange(2))
        for example, found in zip(task.example(2).inputs, rows.inputs, strict=True):
            assert (example.shape, example.dtype) == (found.shape, found.dtype)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"data": "libsvm:x"}, "'libsvm' is not known; known: text"),
        ({"dimension": 0}, "dimension is 0"),
        ({"window": 1.5}, "window is 1.5"),
        ({"negatives": True}, "negatives is True"),
        ({"min_count": -1}, "min_count is -1"),
        ({"samples": 0}, "samples is 0"),
        ({"sample": -1.0}, "sample is -1.0"),
    ],
)
def test_wrong_arguments_are_named(arguments, facts):
    with pytest.raises(TaskError, match=facts):
        word2vec(**arguments)


def test_without_a_text_it_can_be_planned_but_not_read():
    with pytest.raises(TaskError, match="needs a text") as caught:
        word2vec().data("train")
    assert caught.value.fix == "--data text:FILE"
