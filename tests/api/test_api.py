"""The public face: what `import cutset` offers works without the command line, and costs nothing until it is used."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import cutset


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 5)).double()


def test_every_public_name_is_there() -> None:
    assert [name for name in cutset.__all__ if getattr(cutset, name, None) is None] == []
    assert set(cutset.__all__) <= set(dir(cutset))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cutset.nothing  # noqa: B018


def test_importing_cutset_imports_no_torch() -> None:
    code = "import sys, cutset; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("machines", [1, 2, 3])
def test_a_planned_replica_has_the_gradients_of_the_module(machines: int) -> None:
    model, loss = net(), nn.functional.cross_entropy
    x, y = torch.randn(6, 12, dtype=torch.float64), torch.randint(0, 5, (6,))
    placement = cutset.plan(model, x, y, loss=loss, machines=machines)
    assert len(placement.machines) == machines
    with cutset.replica(model, placement, x, y, loss=loss) as replica:
        got = replica.step(cutset.Data((x,), (y,)), 0)
        gradients = replica.gradients()
    expected = loss(model(x), y)
    expected.backward()
    assert got == pytest.approx(float(expected.detach()), rel=1e-11)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-11, atol=1e-13)


def test_a_placement_of_another_module_is_refused() -> None:
    x = torch.randn(6, 12, dtype=torch.float64)
    placement = cutset.plan(net(), x, machines=2)
    other = nn.Sequential(nn.Linear(12, 33), nn.Tanh(), nn.Linear(33, 5)).double()
    with pytest.raises(cutset.CutsetError, match=r"parameter 0\.weight is float64"):
        cutset.replica(other, placement, x)
