"""`cutset train --method sandblaster` as a command: processes, files, and a run that is killed and goes on."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command_line import USAGE, Cutset, refused
from killed import train_and_kill
from safetensors.torch import load_file

from cutset.models import digits_softmax
from cutset.tools.sandblaster.run import prepare_folder

SOFTMAX = "cutset.models:digits_softmax(double=True)"
METHOD = "sandblaster:iterations=12,l2=1e-3,torch_path=true"


def result(out: Path) -> dict:
    return json.loads((out / "result.json").read_text())


@pytest.mark.slow
def test_a_model_cut_over_two_machines_learns_the_digits(cutset: Cutset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ("--machines", 2, "--replicas", 2, "--method", "sandblaster:iterations=60")
    done = cutset("train", "cutset.models:digits", *options, "--out", out, "--no-baseline")
    assert done.code == 0, done.err
    found = result(out)
    assert found["test_accuracy"] >= 0.96
    assert len(found["iterations"]) == 60
    assert "The last 2 of 1437 samples are left out: a cut model takes portions of 35." in found["notes"]
    assert "iteration" in done.out
    assert "Iterations" in (out / "report.html").read_text()
    assert (out / "checkpoint" / "manifest.json").exists()


@pytest.mark.slow
def test_the_weights_are_those_of_torch_and_the_table_has_both(cutset: Cutset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = cutset("train", SOFTMAX, "--replicas", 2, "--shards", 3, "--method", METHOD, "--out", out, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["rows"][0]["name"] == "one process, torch's L-BFGS"
    weights = load_file(out / "model.safetensors")
    data = digits_softmax(double=True).data
    assert data is not None
    samples = data("train")
    point = torch.zeros(650, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([point], max_iter=12, max_eval=100, history_size=10, line_search_fn="strong_wolfe")

    def evaluate() -> torch.Tensor:
        optimiser.zero_grad()
        scores = samples.inputs[0] @ point[:640].view(10, 64).T + point[640:]
        loss = torch.nn.functional.cross_entropy(scores, samples.targets[0]) + 5e-4 * (point**2).sum()
        loss.backward()
        return loss

    optimiser.step(evaluate)
    mine = torch.cat([weights["weight"].reshape(-1), weights["bias"]])
    assert (mine - point.detach()).abs().max() <= 1e-10
    assert found["rows"][0]["samples"] == found["rows"][1]["samples"]


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_end(cutset: Cutset, tmp_path: Path) -> None:
    options = ("--replicas", 2, "--shards", 2, "--no-baseline", "--method", "sandblaster:iterations=40,l2=1e-3")
    calm = cutset("train", SOFTMAX, *options, "--out", tmp_path / "calm")
    assert calm.code == 0, calm.err
    train_and_kill(SOFTMAX, *options, "--out", tmp_path / "run", at_step=10)
    again = cutset("train", SOFTMAX, *options, "--out", tmp_path / "again", "--resume", tmp_path / "run")
    assert again.code == 0, again.err
    before, after = result(tmp_path / "calm"), result(tmp_path / "again")
    assert after["iterations"][-1]["loss"] == before["iterations"][-1]["loss"]
    ends = [load_file(tmp_path / name / "model.safetensors") for name in ("calm", "again")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    resume = ("--out", tmp_path / "other", "--resume", tmp_path / "run", "--no-baseline")
    other = cutset("train", SOFTMAX, "--replicas", 2, "--shards", 3, "--method", METHOD, *resume)
    assert other.code == 8
    assert "E812" in other.err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--method", "sandblaster:history=0"], "E260"),
        (["--method", "sandblaster", "--lr", "0.1"], "E296"),
        (["--method", "sandblaster", "--epochs", "3"], "E296"),
        (["--method", "sandblaster", "--compress", "bf16"], "E267"),
        (["--method", "sandblaster", "--checkpoint-every", "10"], "E288"),
        (["--method", "sandblaster", "--batch", "1437", "--replicas", "2"], "E223"),
    ],
)
def test_what_cannot_be_is_refused(cutset: Cutset, tmp_path: Path, options: list[str], code: str) -> None:
    refused(cutset("train", SOFTMAX, "--out", tmp_path / "run", *options), USAGE, code)


def test_a_run_by_another_method_cannot_be_resumed(cutset: Cutset, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    options = ("--out", tmp_path / "run", "--method", "sandblaster", "--resume", tmp_path / "old")
    refused(cutset("train", SOFTMAX, *options), USAGE, "E295", "--init")


@pytest.mark.parametrize("out", ["run", "next"])
def test_a_resumed_run_starts_from_the_initial_weights_of_the_first(tmp_path: Path, out: str) -> None:
    """In the same folder or in another: whatever is drawn by then, these are what a shard is rolled back to."""

    def job(name: str, resume: Path | None) -> Any:
        (tmp_path / name).mkdir(exist_ok=True)
        initial = tmp_path / name / "initial.safetensors"
        initial.write_text("drawn for " + ("the first" if resume is None else "the second"))
        config, training = SimpleNamespace(resume=resume), SimpleNamespace(initial=initial)
        return SimpleNamespace(out=tmp_path / name, config=config, training=training)

    prepare_folder(job("run", None))
    (tmp_path / "run" / "batch" / "operations.jsonl").write_text("{}")
    prepare_folder(job(out, tmp_path / "run"))
    assert (tmp_path / out / "initial.safetensors").read_text() == "drawn for the first"
    assert (tmp_path / out / "batch" / "operations.jsonl").exists()
    prepare_folder(job(out, None))
    assert not (tmp_path / out / "batch" / "operations.jsonl").exists()
