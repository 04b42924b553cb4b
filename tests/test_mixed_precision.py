"""Models with parameters of fewer bits train with float32 masters, cut or not, and resume with all of their bits."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from places import ROOT, USER_MODELS
from safetensors.torch import load_file

import cutset
from cutset.tools.job.resume import find_checkpoint

OPTIONS: dict[str, Any] = {"method": "sync", "lr": 0.01, "optimizer": "sgd:momentum=0.9", "baseline": False}
SCRIPT = ROOT / "tests" / "support" / "user_scripts" / "halves.py"
TASK = f"{USER_MODELS / 'halves.py'}:halves"


def masters(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = find_checkpoint(folder)
    return {name: checkpoint.read_box(name, tuple((0, n) for n in checkpoint.axes(name))) for name in checkpoint.names}


@pytest.mark.run
@pytest.mark.parametrize("machines", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_resumes_has_the_bits_of_one_that_did_not(tmp_path: Path, machines: int) -> None:
    options = {**OPTIONS, "machines": machines, "replicas": 2 // machines, "epochs": 2}
    cutset.train(TASK, out=tmp_path / "whole", checkpoint_every=5, keep_checkpoints=100, **options)
    cutset.train(TASK, out=tmp_path / "resumed", resume=tmp_path / "whole" / "checkpoints" / "000002", **options)
    whole, resumed = (masters(tmp_path / run / "checkpoint") for run in ("whole", "resumed"))
    assert {tensor.dtype for tensor in whole.values()} == {torch.float32}
    assert all(tensor.equal(resumed[name]) for name, tensor in whole.items())
    weights = load_file(tmp_path / "resumed" / "model.safetensors")
    assert weights["first.weight"].dtype == torch.bfloat16
    assert weights["second.weight"].dtype == torch.float32
    assert not whole["first.weight"].equal(weights["first.weight"].float().view(whole["first.weight"].shape))
    assert whole["first.weight"].bfloat16().equal(weights["first.weight"].view(whole["first.weight"].shape))


@pytest.mark.slow
def test_a_script_that_resumes_has_the_bits_of_one_that_did_not(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("cutset"), "launch", "--method", "sync", "--out"]
    first = ["whole", "--checkpoint-every", 5, "--keep-checkpoints", 100, SCRIPT, "--epochs", 3]
    for rest in (first, ["resumed", "--resume", "whole/checkpoints/000002", SCRIPT, "--epochs", 3]):
        subprocess.run([*map(str, command), *map(str, rest)], cwd=tmp_path, check=True, timeout=100)
    whole, resumed = (masters(tmp_path / run / "checkpoint") for run in ("whole", "resumed"))
    assert {tensor.dtype for tensor in whole.values()} == {torch.float32}
    assert all(tensor.equal(resumed[name]) for name, tensor in whole.items())
    assert load_file(tmp_path / "resumed" / "model.safetensors")["0.weight"].dtype == torch.bfloat16


@pytest.mark.run
def test_a_cut_model_trains_as_an_uncut_one(tmp_path: Path) -> None:
    every = {"checkpoint_every": 5, "keep_checkpoints": 100}
    for machines in (1, 2):
        cutset.train(TASK, out=tmp_path / str(machines), machines=machines, epochs=2, **every, **OPTIONS)
    first = masters(tmp_path / "1" / "checkpoints" / "000001")
    alone, cut = masters(tmp_path / "1" / "checkpoint"), masters(tmp_path / "2" / "checkpoint")
    assert alone.keys() == cut.keys()
    for name, tensor in alone.items():
        moved = float((tensor - first[name]).abs().max())
        torch.testing.assert_close(cut[name].view(tensor.shape), tensor, rtol=0, atol=0.1 * moved)
