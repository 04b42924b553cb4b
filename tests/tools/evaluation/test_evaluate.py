"""`cutset eval` as a command: a checkpoint scores alike wherever it is read from and however the model is cut."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from marking import with_slow
from safetensors.torch import load_file

from cutset.errors import CheckpointError, UsageError
from cutset.models.tasks.digits import digits
from cutset.tools.commands.cli import cli

TASK = "cutset.models:digits"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a cut model."""
    out = tmp_path_factory.mktemp("trained") / "run"
    arguments = ["train", TASK, "--machines", "2", "--lr", "0.05", "--no-baseline", "--out", str(out), "--json"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return out


def evaluated(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["eval", *map(str, arguments), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("machines", "where"),
    with_slow(
        [(None, "")],
        [
            (1, "model.safetensors"),
            (3, "checkpoint"),
            (None, "checkpoint"),
            (None, "model.safetensors"),
            (1, ""),
            (1, "checkpoint"),
            (3, ""),
            (3, "model.safetensors"),
        ],
    ),
)
def test_a_checkpoint_scores_as_plain_torch_does(run: Path, where: str, machines: int | None) -> None:
    task = digits()
    model = task.build(seed=7)
    model.load_state_dict(load_file(run / "model.safetensors"))
    assert task.data is not None
    test = task.data("test")
    with torch.no_grad():
        expected = task.correct(model.eval()(*test.inputs), *test.targets)
    chosen = [] if machines is None else ["--machines", machines]
    found = evaluated(TASK, "--checkpoint", run / where, *chosen)
    assert (found["correct"], found["samples"]) == (expected, len(test))
    assert found["machines"] == (machines or (2 if where == "" else 1))
    assert found["samples_per_s"] > 0


def test_the_weights_of_another_model_are_refused(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"E809: .*checkpoint has no tensor|E809: .* of shape"):
        evaluated("cutset.models:digits_local", "--checkpoint", run / "checkpoint")


def test_a_damaged_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(run / "checkpoint", folder)
    shard = next(folder.glob("shard-0*"))
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="E802"):
        evaluated(TASK, "--checkpoint", folder)


def test_an_unknown_split_is_named(run: Path) -> None:
    with pytest.raises(UsageError, match="E217: no split 'validation'"):
        evaluated(TASK, "--checkpoint", run, "--split", "validation")
