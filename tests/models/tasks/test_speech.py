"""DistBelief's acoustic net."""

import torch

from cutset.models import speech


def test_it_has_the_papers_layers_and_42_million_parameters():
    model = speech().build(seed=0, device="meta")
    shapes = [tuple(m.weight.shape) for m in model if isinstance(m, torch.nn.Linear)]
    assert shapes == [(2560, 440), (2560, 2560), (2560, 2560), (2560, 2560), (8192, 2560)]
    assert [type(m).__name__ for m in model] == ["Linear", "Sigmoid"] * 4 + ["Linear"]
    assert sum(p.numel() for p in model.parameters()) == 41_777_152


def test_example_is_like_the_data_and_fits_model_and_loss():
    task = speech()
    example, rows = task.example(3), task.data("train").rows(torch.arange(3))
    for a, b in zip((*example.inputs, *example.targets), (*rows.inputs, *rows.targets), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    with torch.device("meta"):
        model = task.model()
    outputs = model(*(t.to("meta") for t in example.inputs))
    assert task.loss(outputs, *(t.to("meta") for t in example.targets)).shape == ()
