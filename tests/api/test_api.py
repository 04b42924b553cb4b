"""The public face: what `import cutset` offers works without the command line, and costs nothing until it is used."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
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


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("machines", [1, 3])
def test_a_checkpoint_predicts_in_order_and_as_plain_torch_does(machines: int, tmp_path: Path) -> None:
    model, x = net(), torch.randn(50, 12, dtype=torch.float64)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    placement = cutset.plan(model, x[:6], machines=machines)
    other = net()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()  # what is predicted comes from the file
    with cutset.replica(
        other, placement, x[:6], checkpoint=tmp_path / "weights.safetensors", training=False
    ) as replica:
        outputs = list(replica.predict(cutset.Data((x,), ())))
    assert [len(output) for output in outputs] == [6] * 8 + [2]
    torch.testing.assert_close(torch.cat(outputs), model(x).detach(), rtol=1e-11, atol=1e-13)


def test_weights_that_lack_a_tensor_are_refused(tmp_path: Path) -> None:
    model, x = net(), torch.randn(6, 12, dtype=torch.float64)
    save_file({"0.weight": torch.zeros(32, 12)}, tmp_path / "weights.safetensors")
    with pytest.raises(cutset.CutsetError, match=r"E809: .* has no tensor '0.bias'; of the model's 4 it lacks 3"):
        cutset.replica(model, cutset.plan(model, x), x, checkpoint=tmp_path / "weights.safetensors", training=False)
