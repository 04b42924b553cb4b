"""A step is the model and its loss: a loss is one number with a gradient, or is refused before anything else."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.capture.export import capture

X, Y = torch.randn(4, 6), torch.randn(4, 6)


@pytest.mark.parametrize(
    ("loss", "said"), [(lambda o, t: o - t, r"not \(4, 6\)"), (lambda o, t: (o.sum(), t), "not tuple")]
)
def test_a_loss_must_be_one_number(loss, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInput, match=f"E322: the loss must be a scalar tensor, {said}"):
        capture(nn.Linear(6, 6), loss, [X], [Y])


@pytest.mark.parametrize(
    "loss", [lambda o, t: (o > t).float().mean(), lambda o, t: F.mse_loss(o.detach(), t), lambda o, t: t.mean()]
)
def test_a_loss_without_a_gradient_would_train_nothing(loss: Callable[..., Tensor]) -> None:
    with pytest.raises(BadInput, match="E322: the loss has no gradient"):
        capture(nn.Linear(6, 6), loss, [X], [Y])


def test_a_model_without_parameters_may_have_a_loss_without_a_gradient() -> None:
    assert capture(nn.Linear(6, 6).requires_grad_(False), F.mse_loss, [X], [Y])[0].ops
