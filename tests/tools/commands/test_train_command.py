"""`cutset train` as a command: what it refuses before any process is started, and how a run that diverges ends."""

import re
from pathlib import Path

import pytest
from command_line import BAD_INPUT, DIVERGED, USAGE, Cutset, refused
from marking import with_slow
from places import USER_MODELS

MODELS = USER_MODELS
GOOD, WRONG = MODELS / "good.py", MODELS / "wrong.py"
TASK = f"{GOOD}:task"


@pytest.mark.usefixtures("roleless")
@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--optimizer", "newton"], "E252", ["'newton'", "adagrad", "sgd"]),
        (["--method", "nothing"], "E252", ["'nothing'", "--method downpour"]),
        (["--lr", "0"], "E253", ["0.0", "above 0"]),
        (["--lr", "-1"], "E253", ["-1.0"]),
        (["--lr", "nan"], "E253", ["nan"]),
        (["--lr", "inf"], "E253", ["inf"]),
        (["--lr", "1e39"], "E226", ["1e+39"]),
        (["--method", "downpour:fetch=0"], "E260", ["fetch is 0", "downpour:fetch=1"]),
        (["--method", "downpour:push=0"], "E260", ["push is 0", "downpour:push=1"]),
        (["--method", "downpour:warm_start=-1"], "E260", ["warm_start is -1", "downpour:warm_start=0"]),
        (["--method", "downpour:warm_start=1000", "--replicas", "2"], "E261", ["warm start of 1000", "makes 6"]),
        (["--replicas", "0"], "E220", ["--replicas 0", "--replicas 1"]),
        (["--shards", "0"], "E220", ["--shards 0"]),
        (["--epochs", "0"], "E220", ["--epochs 0"]),
        (["--epochs", "-1"], "E220", ["--epochs -1"]),
        (["--replicas", "100"], "E223", ["96 samples", "batch of 8", "100 replicas"]),
        (["--batch", "97"], "E223", ["96 samples", "batch of 97"]),
        (["--replicas", "1000"], "E221", ["1001 processes"]),
        (["--shards", "1000"], "E221", ["1001 processes"]),
        (["--target", "nan"], "E225", ["nan"]),
        (["--machines", "0"], "E201", ["0 machines"]),
        (["--machines", "-2"], "E201", ["-2 machines"]),
        (["--machines", "2", "--candidates", "magic"], "E202", ["'magic'", "slices", "metis layers"]),
        (["--data", "mnist:here"], "E211", ["takes no data", "leave --data out"]),
        (["--input", "4x8"], "E214", ["leave --input out"]),
    ],
)
def test_options_that_cannot_be_trained_with(
    cutset: Cutset, tmp_path: Path, options: list[str], code: str, said: list[str]
) -> None:
    refused(cutset("train", TASK, "--out", tmp_path / "run", *options), USAGE, code, *said)


@pytest.mark.parametrize("out", ["/proc/no-such-folder", f"{GOOD}/below-a-file"])
def test_a_run_folder_that_cannot_be_made(cutset: Cutset, out: str) -> None:
    refused(cutset("train", TASK, "--out", out), USAGE, "E222", out, "--out")


def test_a_run_folder_with_a_file_in_the_way(cutset: Cutset, tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    refused(cutset("train", TASK, "--out", tmp_path), USAGE, "E279", str(tmp_path), "logs", "--out")


def test_a_run_folder_that_is_a_file(cutset: Cutset) -> None:
    refused(cutset("train", TASK, "--out", GOOD), USAGE, "E222", f"the run folder {GOOD}", "--out")


@pytest.mark.usefixtures("roleless")
@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("no_data", "E310", ["has no data to train on", "data=..."]),
        ("no_test_split", "E311", ["data('test')", "wrong.py:", "KeyError: 'test'"]),
        ("data_gives_tensors", "E311", ["gives a Tensor", "cutset.Data"]),
        ("data_gives_nothing", "E311", ["data('train')", "no samples"]),
        ("no_test_samples", "E311", ["data('test')", "no samples"]),
        ("ragged_data", "E311", ["(4, 8)", "(5,)"]),
        ("wide_samples", "E313", ["train", "inputs", "float32[9]", "float32[8]"]),
        ("double_samples", "E313", ["float64[8]", "float32[8]"]),
        ("float_labels", "E313", ["targets", "float32[]", "int64[]"]),
        ("labels_out_of_range", "E314", ["first training batch", "8 x float32[8]", "Target 3 is out of bounds"]),
        ("correct_raises", "E315", ["(8, 3)", "wrong.py:", "no such class", "correct="]),
        ("correct_is_a_share", "E315", ["0.25", "of 8"]),
        ("metric_raises", "E315", ["metric 'broken'", "wrong.py:", "no such class"]),
        ("no_score", "E315", ["evaluation mode", "too many values", "metrics="]),
        ("without_parameters", "E316", ["no parameter to train"]),
        ("partly_complex", "E342", ["complex64, float32", "view_as_real"]),
        ("example_of_another_batch", "E312", ["example(8)", "4 samples"]),
        ("model_is_no_function", "E304", ["is a Sequential", "model=lambda"]),
    ],
)
@pytest.mark.run
def test_a_task_that_cannot_be_trained(cutset: Cutset, tmp_path: Path, name: str, code: str, said: list[str]) -> None:
    """It is found out before any process is started."""
    refused(cutset("train", f"{WRONG}:{name}", "--out", tmp_path), BAD_INPUT, code, *said)
    assert list(tmp_path.rglob("*.log")) == []


@pytest.mark.run
@pytest.mark.parametrize("machines", with_slow([1], [2]))
def test_a_step_that_fails_on_its_samples_says_so(cutset: Cutset, tmp_path: Path, machines: int) -> None:
    options = ["--machines", machines, "--no-baseline", "--out", tmp_path / "run"]
    said = ["the model or the loss fails on the batch of step", "IndexError: Target 7 is out of bounds"]
    refused(cutset("train", f"{WRONG}:one_label_out_of_range", *options), BAD_INPUT, "E314", *said)


def test_one_machine_does_not_excuse_a_wrong_example(cutset: Cutset, tmp_path: Path) -> None:
    outcome = cutset("train", f"{WRONG}:misfit", "--machines", 1, "--out", tmp_path)
    refused(outcome, BAD_INPUT, "E321", "(8, 8)", "return self.second(x)")


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        ("mnist", "E312", ["'mnist'", "kind:DIR"]),
        ("mnist:", "E312", ["'mnist:'", "kind:DIR"]),
        ("cifar:here", "E312", ["'cifar'", "known: mnist"]),
        ("mnist:/no/such/folder", "E311", ["/no/such/folder does not exist"]),
        (f"mnist:{GOOD}", "E311", [f"{GOOD} is not a folder"]),
        (f"mnist:{MODELS}", "E311", [f"{MODELS} has no file train-images-idx3-ubyte"]),
    ],
)
def test_a_data_option_that_leads_nowhere(
    cutset: Cutset, tmp_path: Path, data: str, code: str, said: list[str]
) -> None:
    refused(cutset("train", "cutset.models:mnist", "--data", data, "--out", tmp_path), BAD_INPUT, code, *said)


@pytest.mark.run
def test_a_task_that_needs_a_data_option(cutset: Cutset, tmp_path: Path) -> None:
    said = ["mnist", "train-images-idx3-ubyte", "--data mnist:DIR"]
    refused(cutset("train", "cutset.models:mnist", "--out", tmp_path), BAD_INPUT, "E311", *said)


@pytest.mark.run
def test_a_truncated_data_file_is_named_with_its_sizes(cutset: Cutset, tmp_path: Path) -> None:
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (10, 28, 28)) + bytes(5000))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 10]) + bytes(10))
    outcome = cutset("train", "cutset.models:mnist", "--data", f"mnist:{tmp_path}", "--out", tmp_path / "run")
    refused(outcome, BAD_INPUT, "E311", str(images), "expected 7856 bytes", "found 5016", "download the file again")


@pytest.mark.slow
def test_a_rate_that_is_far_too_large_ends_the_run(cutset: Cutset, tmp_path: Path) -> None:
    """The worker with the loss and the shard see it in the same step; either may be the first to say so."""
    options = ["--machines", 2, "--optimizer", "sgd", "--lr", "1e30", "--out", tmp_path, "--no-baseline"]
    outcome = cutset("train", TASK, *options)
    assert outcome.code == DIVERGED
    worker, shard = r"E702: the loss of worker-0\.\d at step 1 is", r"E701: .* on shard-\d .* of worker-0\.\d at step 1"
    assert re.search(f"error ({worker}|{shard})", outcome.err)
    assert "--lr" in outcome.err.partition("fix: ")[2]
    assert "Traceback" not in outcome.err


@pytest.mark.slow
def test_the_last_step_may_not_ruin_the_parameters_unnoticed(cutset: Cutset, tmp_path: Path) -> None:
    """No loss is computed after it."""
    command = ["train", f"{WRONG}:loud_samples", "--batch", 96, "--optimizer", "sgd", "--lr", "3e38", "--out", tmp_path]
    outcome = cutset(*command)
    assert outcome.code == DIVERGED
    assert "error E703: one-process: the parameters are not finite after step 0\n" in outcome.err
    outcome = cutset(*command, "--no-baseline")
    assert outcome.code == DIVERGED
    assert re.search(r"error E701: the parameters on shard-0 .* with the push of worker-0.0 at step 0", outcome.err)


@pytest.mark.slow
def test_one_process_that_diverges_is_named(cutset: Cutset, tmp_path: Path) -> None:
    outcome = cutset("train", f"{WRONG}:not_a_number", "--out", tmp_path)
    assert outcome.code == DIVERGED
    assert "error E702: the loss of one-process at step 0 is nan" in outcome.err
    assert "no step was taken yet" in outcome.err
