"""A training that torch began goes on here, and one from here in torch, as if it had been one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from places import ROOT
from torch import Tensor, nn

from cutset.tools.task.load_task import TaskSpec, build_model, load_task

CUTSET = Path(sys.executable).with_name("cutset")
PLANE = ROOT / "tests" / "support" / "user_scripts" / "plane.py"


def call(folder: Path, *command: object) -> None:
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def weight_of(path: Path) -> Tensor:
    found: Tensor = torch.load(path, weights_only=True)["model"]["weight"]
    return found


@pytest.mark.slow
def test_what_torch_began_goes_on_here_and_the_reverse(tmp_path: Path) -> None:
    call(tmp_path, sys.executable, PLANE, "whole.pt", "--epochs", 6)
    call(tmp_path, sys.executable, PLANE, "begun.pt", "--epochs", 2)
    options = ["--method", "sync", "--samples", 64]
    call(tmp_path, CUTSET, "import", "begun.pt", "--out", "imported", *options)
    launch = [CUTSET, "launch", "--method", "sync", "--resume", "imported", "--out", "run", PLANE]
    call(tmp_path, *launch, "here.pt", "--epochs", 4)
    call(tmp_path, CUTSET, "export", "run", "--to", "torch", "--out", "exported.pt")
    torch.testing.assert_close(weight_of(tmp_path / "exported.pt"), weight_of(tmp_path / "here.pt"), rtol=0, atol=0)

    saved = torch.load(tmp_path / "exported.pt", weights_only=True)
    torch.manual_seed(0)
    inputs = torch.randn(32, 5, dtype=torch.float64)
    model = nn.Linear(5, 1, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.05)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    for start in list(range(0, 32, 4)) * 2:
        optimizer.zero_grad()
        x = inputs[start : start + 4]
        (model(x)[:, 0] - x.sum(1)).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(model.weight.detach(), weight_of(tmp_path / "whole.pt"), rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_what_is_exported_of_a_cut_model_is_in_the_order_of_the_model(tmp_path: Path) -> None:
    """Optimizers of torch take state by the place of a parameter."""
    options = ["--no-baseline", "--machines", 2, "--optimizer", "adam", "--lr", 0.01, "--out", "run"]
    call(tmp_path, CUTSET, "train", "cutset.models:digits", *options)
    call(tmp_path, CUTSET, "export", "run", "--to", "torch", "--out", "exported.pt")
    saved = torch.load(tmp_path / "exported.pt", weights_only=True)
    model = build_model(load_task(TaskSpec("cutset.models:digits")), seed=0)
    assert list(saved["model"]) == list(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.load_state_dict(saved["optimizer"])
    for parameter in model.parameters():
        assert optimizer.state[parameter]["exp_avg"].shape == parameter.shape
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
