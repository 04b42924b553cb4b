"""What a trace cannot show becomes an island by itself: as small as can be, and with the numbers of plain torch."""

import random

import pytest
import torch
from cutting import Outcome, assert_same, buffers
from data_branching import BRANCHING, mean_of_squares
from torch import Tensor, nn

import cutset
from cutset.errors import BadInput
from cutset.models.task import Data
from cutset.runtime.worker.dropout_masks import mask_seed

X, Y = torch.randn(8, 6, dtype=torch.float64), torch.randint(0, 5, (8,))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", BRANCHING)
def test_leaf_modules_are_found_and_change_nothing(name: str) -> None:
    make, loss, expected = BRANCHING[name]
    model = make().double()
    placement = cutset.plan(model, X, Y, loss=loss, machines=2, fewer=name == "step")
    assert tuple(placement.leaf_modules) == expected
    with cutset.replica(model, placement, X, Y, loss=loss, seed=3) as replica:
        for step in range(3):
            found = Outcome(replica.step(Data((X,), (Y,)), step), replica.gradients(), buffers(replica))
            model.zero_grad()
            with torch.random.fork_rng():
                torch.manual_seed(mask_seed(3, step, 0))
                value = loss(model(X), Y)
            value.backward()
            gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
            assert_same(found, Outcome(value.item(), gradients, dict(model.named_buffers())), rtol=1e-11)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", ["branch", "inner", "quantised", "statistics", "loss"])
def test_such_models_predict_like_plain_torch(name: str) -> None:
    make, loss, _ = BRANCHING[name]
    model = make().double()
    placement = cutset.plan(model, X, Y, loss=loss, machines=2)
    with cutset.replica(model, placement, X, Y, loss=loss, training=False) as replica:
        (found,) = replica.predict([Data((X,), (Y,))], 0)
    torch.testing.assert_close(found, model.eval()(X), rtol=1e-11, atol=1e-12)


class Chosen(nn.Module):
    """Returns the rows that data chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x)
        return y[y[:, 0] > 0]


@pytest.mark.run
def test_a_prediction_of_a_size_that_depends_on_data_is_refused_in_words() -> None:
    model = Chosen().double()
    placement = cutset.plan(model, X, Y, loss=mean_of_squares, machines=2)
    with pytest.raises(BadInput, match="what is read of the model's output has a size that depends on data"):
        cutset.replica(model, placement, X, Y, loss=mean_of_squares, training=False)


class ByNumpy(nn.Module):
    """Draws what torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        import numpy as np

        return self.first(x) * float(np.random.rand())


def test_chance_that_torch_does_not_control_is_refused_by_its_line() -> None:
    with pytest.raises(BadInput, match=r"draws random numbers of Python or numpy at test_leaf_search\.py:") as caught:
        cutset.plan(ByNumpy().double(), X, Y, loss=nn.functional.cross_entropy)
    assert "draw with torch.rand" in caught.value.fix


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_what_torchscript_has_made_is_refused_in_words() -> None:
    layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU())
    scripted = nn.Sequential(nn.Linear(6, 6), torch.jit.script(layers), nn.Linear(6, 5)).double()
    with pytest.raises(BadInput, match=r"E320: the module 1 was made by torch\.jit") as caught:
        cutset.plan(scripted, X, Y, loss=nn.functional.cross_entropy)
    assert "give the module that it was made of" in caught.value.fix


class DropsLayers(nn.Module):
    """A layer that is dropped with a probability, by a number of Python."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability, self.first, self.second = probability, nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped = random.uniform(0, 1)
        y: torch.Tensor = self.second(x if self.training and dropped < self.probability else self.first(x))
        return y


def test_a_layer_that_is_never_dropped_is_cut_like_others() -> None:
    placement = cutset.plan(DropsLayers(0.0).double(), X, Y, loss=nn.functional.cross_entropy, machines=2)
    assert not placement.leaf_modules
    with pytest.raises(BadInput, match=r"draws random numbers of Python or numpy at test_leaf_search\.py:"):
        cutset.plan(DropsLayers(0.5).double(), X, Y, loss=nn.functional.cross_entropy)
