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
from cutset.tools.exchange.trained_model import read_trained
from cutset.tools.python.trainer import Trainer

TASK = "cutset.models:digits"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a cut model, with averaged weights."""
    out = tmp_path_factory.mktemp("trained") / "run"
    arguments = ["train", TASK, "--machines", "2", "--lr", "0.05", "--epochs", "3", "--ema", "0.99", "--no-baseline"]
    done = CliRunner().invoke(cli, [*arguments, "--json", "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    return out


def evaluated(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["eval", *map(str, arguments), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.run
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


@pytest.mark.run
def test_what_an_interrupted_run_has_saved_is_evaluated_and_exported(run: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    shutil.copytree(run / "checkpoint", stopped / "checkpoints" / "000001")
    shutil.copytree(run / "checkpoint", stopped / "best")
    whole, saved = evaluated(TASK, "--checkpoint", run), evaluated(TASK, "--checkpoint", stopped)
    assert (saved["correct"], saved["samples"]) == (whole["correct"], whole["samples"])
    weights = load_file(run / "model.safetensors")
    for which in ("last", "best"):
        found = read_trained(stopped, which).weights
        assert found.keys() == weights.keys()
        assert all(torch.equal(found[name], weights[name]) for name in weights)
    with pytest.raises(UsageError, match="E239"):
        read_trained(tmp_path, "best")


@pytest.mark.run
def test_the_weights_of_another_model_are_refused(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"E809: .*checkpoint has no tensor|E809: .* of shape"):
        evaluated("cutset.models:digits_local", "--checkpoint", run / "checkpoint")


@pytest.mark.run
def test_a_damaged_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(run / "checkpoint", folder)
    shard = next(folder.glob("shard-0*"))
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="E802"):
        evaluated(TASK, "--checkpoint", folder)


@pytest.mark.run
def test_an_unknown_split_is_named(run: Path) -> None:
    with pytest.raises(UsageError, match="E217: no split 'validation'"):
        evaluated(TASK, "--checkpoint", run, "--split", "validation")


@pytest.mark.slow
def test_averaged_weights_evaluate_and_predict_as_in_plain_torch(run: Path) -> None:
    task = digits()
    assert task.data is not None
    test, model = task.data("test"), task.build(seed=7)
    model.load_state_dict(load_file(run / "model-ema.safetensors"))
    with torch.no_grad():
        outputs = model.eval()(*test.inputs)
        expected = float(task.loss(outputs, *test.targets))
    cut, whole = (evaluated(TASK, "--checkpoint", run, "--ema", *more) for more in ([], ["--machines", 1]))
    assert (cut["machines"], whole["machines"]) == (2, 1)
    assert (cut["loss"], whole["loss"]) == (pytest.approx(expected), pytest.approx(expected))
    trained = evaluated(TASK, "--checkpoint", run)
    assert abs(trained["loss"] - expected) > 1e-4, "the average is that of other weights"
    trainer = Trainer(TASK, out=run)
    assert trainer.evaluate(which="ema")["loss"] == pytest.approx(expected)
    assert torch.allclose(trainer.predict("test", which="ema"), outputs, atol=1e-5)


@pytest.mark.slow
def test_an_average_that_is_not_there_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"E239: (.|\n)*has one set of weights(.|\n)*model-ema"):
        evaluated(TASK, "--checkpoint", run / "model.safetensors", "--ema")
    without = tmp_path / "without"
    train = ["train", TASK, "--epochs", "1", "--no-baseline", "--json", "--out", str(without)]
    assert CliRunner().invoke(cli, train, catch_exceptions=False).exit_code == 0
    with pytest.raises(UsageError, match=r"E239: .*checkpoint has no moving average(.|\n)*train with --ema"):
        evaluated(TASK, "--checkpoint", without, "--ema")
    with pytest.raises(UsageError, match=r"E276: .*has no model-ema.safetensors(.|\n)*ema=0.999"):
        Trainer(TASK, out=without).evaluate(which="ema")
