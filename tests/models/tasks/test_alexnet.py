"""`alexnet`."""

import pytest
import torch

from cutset.models import TaskError, alexnet


def test_it_has_the_published_61_1_million_parameters_and_fits_its_images():
    task = alexnet()
    model = task.build(seed=0, device="meta")
    assert sum(p.numel() for p in model.parameters()) == 61_100_840
    assert model(*(t.to("meta") for t in task.example(2).inputs)).shape == (2, 1000)


def test_the_sizes_given_are_taken():
    model = alexnet(classes=7, dropout=0.25).build(seed=0, device="meta")
    assert model[-1].out_features == 7
    assert {m.p for m in model if isinstance(m, torch.nn.Dropout)} == {0.25}


@pytest.mark.parametrize(("sizes", "said"), [({"classes": 0}, "classes=0"), ({"dropout": -0.1}, "dropout=-0.1")])
def test_wrong_sizes_are_refused(sizes, said):
    with pytest.raises(TaskError, match=said):
        alexnet(**sizes)
