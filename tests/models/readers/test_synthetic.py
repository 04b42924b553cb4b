"""Synthetic samples: the same every time, train and test apart, of few classes."""

import pytest
import torch

from cutset.models import TaskError
from cutset.models.readers.synthetic import MAX_CLASSES, SAMPLES, synthetic_images, synthetic_text


@pytest.mark.parametrize("read", [synthetic_images((3, 4, 4), 1000), synthetic_text(12, 30)])
def test_every_read_gives_the_same_and_each_split_others(read):
    first, again, test = read("train"), read("train"), read("test")
    assert torch.equal(first.inputs[0], again.inputs[0])
    assert torch.equal(first.targets[0], again.targets[0])
    assert (len(first), len(test)) == (SAMPLES["train"], SAMPLES["test"])
    assert not torch.equal(first.inputs[0][:64], test.inputs[0])


def test_images_are_their_class_pattern_under_noise():
    train, test = synthetic_images((3, 4, 4), 1000)("train"), synthetic_images((3, 4, 4), 1000)("test")
    assert int(train.targets[0].max()) < MAX_CLASSES
    patterns = torch.stack([train.inputs[0][train.targets[0] == k].mean(0) for k in range(MAX_CLASSES)])
    nearest = (test.inputs[0].unsqueeze(1) - patterns).square().sum((2, 3, 4)).argmin(1)
    assert torch.equal(nearest, test.targets[0])
    assert int(synthetic_images((2,), 3)("train").targets[0].max()) == 2


def test_text_goes_on_where_its_target_says():
    data = synthetic_text(200, 30)("train")
    inputs, targets = data.inputs[0], data.targets[0]
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    followers = {token: set(targets[inputs == token].tolist()) for token in inputs.unique().tolist()}
    assert max(map(len, followers.values())) == 2


def test_unknown_splits_are_refused():
    for read in (synthetic_images((2,), 3), synthetic_text(4, 5)):
        with pytest.raises(TaskError, match="'valid' is not known; known: train, test"):
            read("valid")
