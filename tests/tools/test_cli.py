"""The command line: what it prints when all is well; for bad input a code, the facts, the fix and an exit code."""

import json
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cutset.tools import cli

MODELS = Path(__file__).parent / "user_models"
GOOD, WRONG = MODELS / "good.py", MODELS / "wrong.py"
TASK = f"{GOOD}:task"
USAGE, BAD_INPUT, INFEASIBLE, DIVERGED = 2, 3, 4, 7


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Cutset = Callable[..., Outcome]


@pytest.fixture
def cutset(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cutset]:
    """Runs a command of the console script in this process."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "path", sys.path[:])

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["cutset", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, *capfd.readouterr())

    yield call
    signal.signal(signal.SIGTERM, handler)


def refused(outcome: Outcome, exit_code: int, code: str, *said: str) -> None:
    """It ended with this exit code and error, the facts and the fix say `said`, and nothing else is printed."""
    assert outcome.code == exit_code, outcome
    assert "Traceback" not in outcome.err
    assert f"error {code}: " in outcome.err
    assert outcome.out == ""
    facts, _, fix = outcome.err.partition("\n  fix: ")
    assert fix.strip(), "no fix is offered"
    assert [words for words in said if words not in facts + fix] == []


@pytest.fixture(scope="module")
def placement(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A placement of the small task over two machines."""
    from cutset.tools.load import TaskSpec
    from cutset.tools.planning import Wanted, captured, planned

    spec = TaskSpec(TASK)
    path = tmp_path_factory.mktemp("placement") / "good.json"
    planned(captured(spec), spec, Wanted(machines=2, only="slices")).save(path)
    return path


# All is well ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_told_written_checked_and_shown(cutset: Cutset, tmp_path: Path) -> None:
    file = tmp_path / "cut.json"
    told = cutset("plan", TASK, "--machines", 2, "-o", file)
    assert told.code == 0
    assert "* chosen: " in told.out
    assert told.out.endswith(f"written to {file}; look at it with: cutset show {file}\n")
    assert cutset("check", file) == Outcome(0, f"{file} fits {TASK}: 2 machines\n", "")
    shown = cutset("show", file, "--html", tmp_path / "cut.html", "--svg", tmp_path / "cut.svg")
    assert shown.code == 0
    assert told.out.startswith(shown.out.partition("written")[0])
    assert (tmp_path / "cut.html").read_text().startswith("<!doctype html>")
    assert "</svg>" in (tmp_path / "cut.svg").read_text()


def test_json_is_all_that_is_printed(cutset: Cutset, placement: Path) -> None:
    plan = cutset("plan", TASK, "--machines", 2, "--only", "slices", "--json")
    assert plan == Outcome(0, placement.read_text(), "")
    assert cutset("show", placement, "--json").out == placement.read_text()
    assert json.loads(cutset("check", placement, "--json").out)["ok"] is True
    facts = json.loads(cutset("inspect", TASK, "--json").out)
    assert (facts["task"], facts["parameters"]) == ("clouds", 195)


def test_what_the_users_code_prints_does_not_mix_with_json(cutset: Cutset) -> None:
    for command in (["inspect"], ["plan", "--machines", 2]):
        outcome = cutset(*command, f"{GOOD}:talks", "--json")
        assert isinstance(json.loads(outcome.out), dict)
        assert outcome.err == "let me tell you about clouds\n"


def test_the_schema_describes_a_placement(cutset: Cutset, placement: Path) -> None:
    import jsonschema

    schema = json.loads(cutset("schema").out)
    jsonschema.validate(json.loads(placement.read_text()), schema)


def test_inspect_lists_operators(cutset: Cutset) -> None:
    outcome = cutset("inspect", TASK)
    assert outcome.code == 0
    names = [line.split()[0] for line in outcome.out.splitlines()[2:6]]
    assert names == ["linear", "relu", "linear_1", "cross_entropy_loss"]
    assert "clouds: 195 parameters, 3.06 k FLOP forward for 8 samples; 100 % of the FLOPs can be cut" in outcome.out


def test_a_bare_module_can_be_planned_and_checked(cutset: Cutset, tmp_path: Path) -> None:
    file = tmp_path / "cut.json"
    assert cutset("plan", f"{GOOD}:module", "--input", "4x8", "--batch", 6, "-o", file).code == 0
    assert cutset("check", file, "--input", "4x8").code == 0


def test_help_and_version_do_not_load_torch() -> None:
    code = """
        import sys
        from cutset.tools import cli
        sys.argv = ["cutset", "--help"]
        try:
            cli.main()
        finally:
            print("torch" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: cutset")
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["plan", "-h"], ["--version"]])
def test_help_is_no_error(cutset: Cutset, arguments: list[str]) -> None:
    outcome = cutset(*arguments)
    assert (outcome.code, outcome.err) == (0, "")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """As in `cutset schema | head -1`."""
    command = [str(Path(sys.executable).with_name("cutset")), "schema"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


# The command itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["train"], "Missing argument 'TASK'"),
        (["show"], "Missing argument 'PLACEMENT'"),
        (["plan", TASK, "--machines", "two"], "'two' is not a valid integer"),
        (["plan", TASK, "--batch", "0"], "0 is not in the range x>=1"),
        (["plan", TASK, "--seed", "-1"], "-1 is not in the range 0<=x<=4294967295"),
        (["train", TASK, "--lr", "fast"], "'fast' is not a valid float"),
        (["train", TASK, "--target", "95"], "95.0 is not in the range 0<=x<=1"),
        (
            ["train", TASK, "--placement", "cut.json", "--machines", "2"],
            "give --placement, or what to plan for (--machines and its kin), not both",
        ),
        (["train", TASK, "--repicas", "2"], "No such option '--repicas'"),
    ],
)
def test_a_command_put_together_wrongly(cutset: Cutset, arguments: list[str], said: str) -> None:
    outcome = cutset(*arguments)
    assert (outcome.code, outcome.out) == (USAGE, "")
    assert said in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--rule", "adam"], "E252", ["'adam'", "adagrad, sgd"]),
        (["--method", "easgd"], "E224", ["'easgd'", "--method downpour"]),
        (["--lr", "0"], "E253", ["0.0", "above 0"]),
        (["--lr", "-1"], "E253", ["-1.0"]),
        (["--lr", "nan"], "E253", ["nan"]),
        (["--lr", "inf"], "E253", ["inf"]),
        (["--lr", "1e39"], "E226", ["1e+39"]),
        (["--fetch", "0"], "E260", ["fetch is 0", "--fetch 1"]),
        (["--push", "0"], "E260", ["push is 0", "--push 1"]),
        (["--warm-start", "-1"], "E260", ["warm_start is -1", "--warm-start 0"]),
        (["--warm-start", "1000", "--replicas", "2"], "E261", ["warm start of 1000", "makes 6"]),
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
        (["--machines", "2", "--only", "magic"], "E202", ["'magic'", "slices", "metis layers"]),
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
    refused(cutset("train", TASK, "--out", tmp_path), USAGE, "E222", str(tmp_path / "logs"))


def test_a_run_folder_that_is_a_file(cutset: Cutset) -> None:
    outcome = cutset("train", TASK, "--out", GOOD)
    assert outcome.code == USAGE
    assert f"Directory '{GOOD}' is a file" in outcome.err


def test_a_file_that_cannot_be_written(cutset: Cutset, placement: Path, tmp_path: Path) -> None:
    path = tmp_path / "no such folder" / "cut"
    for option in ("--html", "--svg"):
        refused(cutset("show", placement, option, path), USAGE, "E222", str(path))
    outcome = cutset("plan", TASK, "-o", path)
    assert outcome.code == BAD_INPUT
    assert f"error E330: cannot write the placement to {path}" in outcome.err


# Machines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machines", [0, -1, 100_000])
def test_no_or_absurdly_many_machines(cutset: Cutset, machines: int) -> None:
    refused(cutset("plan", TASK, "--machines", machines), USAGE, "E201", f"{machines} machines", "1 to 4096")


def test_more_machines_than_the_model_has_parts(cutset: Cutset, tmp_path: Path) -> None:
    said = "300 machines for a model that divides into 281 blocks at most"
    refused(cutset("plan", TASK, "--machines", 300), INFEASIBLE, "E402", said)
    refused(cutset("train", TASK, "--machines", 211, "--out", tmp_path), INFEASIBLE, "E403", "211 machines")


# The model string and the user's code --------------------------------------------------------------------------------


def test_a_model_string_that_does_not_import(cutset: Cutset, tmp_path: Path) -> None:
    refused(cutset("plan", "no_such_module:net"), BAD_INPUT, "E301", "'no_such_module'")
    refused(cutset("plan", "no/such/file.py:net"), BAD_INPUT, "E301", "no/such/file.py")
    refused(cutset("plan", "cutset.models"), USAGE, "E210", "'cutset.models'", "cutset.models:digits")
    refused(cutset("plan", f"{GOOD}:tsk"), BAD_INPUT, "E302", "'tsk'", "planned_only", f"{GOOD}:task")
    broken = tmp_path / "broken.py"
    broken.write_text("import torch\n\ndef net(:\n    pass\n")
    refused(cutset("plan", f"{broken}:net"), BAD_INPUT, "E303", f"{broken}:3", "SyntaxError", f"python {broken}")
    lacking = tmp_path / "lacking.py"
    lacking.write_text("import torch\nimport no_such_library\n")
    refused(cutset("plan", f"{lacking}:net"), BAD_INPUT, "E303", f"{lacking}:2", "'no_such_library'")


@pytest.mark.parametrize("command", ["plan", "train", "inspect"])
def test_no_command_shows_a_traceback_of_the_users_code(cutset: Cutset, command: str) -> None:
    refused(cutset(command, f"{WRONG}:raises"), BAD_INPUT, "E303", "wrong.py:", "KeyError: 'hidden_size'")


@pytest.mark.parametrize(
    ("name", "exit_code", "code", "said"),
    [
        ("gives_text", BAD_INPUT, "E304", ["gives a str"]),
        ("gives_nothing", BAD_INPUT, "E304", ["gives a NoneType"]),
        ("exits", BAD_INPUT, "E303", ["SystemExit: no configuration found"]),
        ("needs_arguments", BAD_INPUT, "E305", ["'width'"]),
        ("mlp", USAGE, "E212", ["bare module", "--input 32x3x224x224"]),
        ("model_raises", BAD_INPUT, "E303", ["wrong.py:", "negative dimension -1"]),
        ("misfit", BAD_INPUT, "E321", ["(8, 8)", "wrong.py:", "return self.second(x)", "[8, 16] X [15, 3]"]),
        ("example_of_another_width", BAD_INPUT, "E321", ["(8, 9)", "[8, 9] X [8, 16]"]),
        ("gives_a_pair", BAD_INPUT, "E321", ["must be Tensor, not tuple"]),
        ("loss_without_targets", BAD_INPUT, "E321", ["takes 1 positional argument but 2 were given"]),
        ("loss_of_each_sample", BAD_INPUT, "E322", ["must be a scalar", "(8,)", "mean"]),
        ("example_is_a_tensor", BAD_INPUT, "E312", ["gives a Tensor"]),
        ("branches", BAD_INPUT, "E320", ["wrong.py:", "if y.mean() > 0:", "--machines 1"]),
        ("counts", BAD_INPUT, "E320", ["wrong.py:", ".item()", "--machines 1"]),
    ],
)
def test_a_task_that_cannot_be_planned(cutset: Cutset, name: str, exit_code: int, code: str, said: list[str]) -> None:
    refused(cutset("plan", f"{WRONG}:{name}"), exit_code, code, *said)


@pytest.mark.parametrize(
    ("shape", "exit_code", "code", "said"),
    [
        ("32xwide", USAGE, "E213", ["'32xwide'", "--input 32x3x224x224"]),
        ("4x8:int33", USAGE, "E213", ["'4x8:int33'"]),
        ("4x9", BAD_INPUT, "E321", ["(4, 9)", "[4, 9] X [8, 16]", "--input"]),
    ],
)
def test_an_input_that_does_not_suit(cutset: Cutset, shape: str, exit_code: int, code: str, said: list[str]) -> None:
    refused(cutset("plan", f"{GOOD}:module", "--input", shape), exit_code, code, *said)


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
        ("regression", "E315", ["(8,)", "correct="]),
        ("without_parameters", "E316", ["no parameter to train"]),
        ("two_precisions", "E342", ["float32, float64", "model.float()"]),
        ("example_of_another_batch", "E312", ["example(8)", "4 samples"]),
        ("model_is_no_function", "E304", ["is a Sequential", "model=lambda"]),
    ],
)
def test_a_task_that_cannot_be_trained(cutset: Cutset, tmp_path: Path, name: str, code: str, said: list[str]) -> None:
    """It is found out before any process is started."""
    refused(cutset("train", f"{WRONG}:{name}", "--out", tmp_path), BAD_INPUT, code, *said)
    assert list(tmp_path.rglob("*.log")) == []


def test_a_model_that_cannot_be_traced_is_not_cut(cutset: Cutset, tmp_path: Path) -> None:
    """With one machine it is trained: see test_end_to_end."""
    outcome = cutset("train", f"{WRONG}:branches", "--machines", 2, "--out", tmp_path)
    refused(outcome, BAD_INPUT, "E320", "wrong.py:", "if y.mean() > 0:", "data parallel only", "--machines 1")


def test_one_machine_does_not_excuse_a_wrong_example(cutset: Cutset, tmp_path: Path) -> None:
    outcome = cutset("train", f"{WRONG}:misfit", "--machines", 1, "--out", tmp_path)
    refused(outcome, BAD_INPUT, "E321", "(8, 8)", "return self.second(x)")


# Data on disk --------------------------------------------------------------------------------------------------------


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


def test_a_task_that_needs_a_data_option(cutset: Cutset, tmp_path: Path) -> None:
    said = ["mnist", "train-images-idx3-ubyte", "--data mnist:DIR"]
    refused(cutset("train", "cutset.models:mnist", "--out", tmp_path), BAD_INPUT, "E311", *said)


def test_a_truncated_data_file_is_named_with_its_sizes(cutset: Cutset, tmp_path: Path) -> None:
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (10, 28, 28)) + bytes(5000))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 10]) + bytes(10))
    outcome = cutset("train", "cutset.models:mnist", "--data", f"mnist:{tmp_path}", "--out", tmp_path / "run")
    refused(outcome, BAD_INPUT, "E311", str(images), "expected 7856 bytes", "found 5016", "download the file again")


# Placement files -----------------------------------------------------------------------------------------------------


def changed(placement: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the placement in which something is different."""
    content = json.loads(placement.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("content", ["", '{"format": 2, "mod', "[]", "null", '"cut"', "not json", "\x00\xff"])
def test_a_placement_file_that_is_none(cutset: Cutset, tmp_path: Path, content: str) -> None:
    path = tmp_path / "cut.json"
    path.write_text(content, encoding="latin-1")
    fix = f"cutset plan TASK -o {path}"
    for command in (["check", path], ["show", path], ["train", TASK, "--placement", path, "--out", tmp_path / "run"]):
        refused(cutset(*command), BAD_INPUT, "E332", str(path), "damaged", fix)


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a batch in words": lambda p: p.update(batch="eight"),
    "a format in words": lambda p: p.update(format="new"),
    "no operators": lambda p: p.pop("ops"),
    "no machines": lambda p: p.update(machines=[]),
    "a machine that is not there": lambda p: p["ops"][0]["boxes"][0].__setitem__(1, 7),
    "a machine below the first": lambda p: p["ops"][0]["boxes"][0].__setitem__(1, -1),
    "a box without intervals": lambda p: p["ops"][0]["boxes"][0].__setitem__(0, []),
    "a box that ends before it begins": lambda p: p["ops"][0]["boxes"][0][0].__setitem__(0, [5, 2]),
    "a box beyond its loops": lambda p: p["ops"][0]["boxes"][0][0].__setitem__(0, [0, 99]),
    "an owner that is not there": lambda p: p["parameters"][0]["boxes"][0].__setitem__(1, 2),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_damaged_placement_file(cutset: Cutset, tmp_path: Path, placement: Path, what: str) -> None:
    path = changed(placement, tmp_path / "cut.json", CHANGES[what])
    commands = [["check", path], ["show", path, "--html", tmp_path / "x.html"], ["train", TASK, "--placement", path]]
    for command in commands:
        refused(cutset(*command), BAD_INPUT, "E332", str(path), "damaged", f"cutset plan TASK -o {path}")


def test_a_placement_file_of_a_newer_version(cutset: Cutset, tmp_path: Path, placement: Path) -> None:
    path = changed(placement, tmp_path / "cut.json", lambda p: p.update(format=99))
    for command in (["check", path], ["show", path], ["train", TASK, "--placement", path, "--out", tmp_path / "run"]):
        refused(cutset(*command), BAD_INPUT, "E333", str(path), "format 99", "pip install --upgrade cutset")


def test_a_placement_file_that_is_not_there(cutset: Cutset, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    for command in (["check", path], ["show", path], ["train", TASK, "--placement", path, "--out", tmp_path / "run"]):
        refused(cutset(*command), BAD_INPUT, "E331", str(path), "No such file")
    refused(cutset("check", tmp_path), BAD_INPUT, "E331", str(tmp_path), "Is a directory")


OTHERS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "other parameters": (
        lambda p: p["fingerprint"]["parameters"][0].__setitem__(1, [1, 2]),
        "parameter 0.weight is float32[1, 2] in the placement, float32[16, 8] in the model",
    ),
    "a missing operator": (
        lambda p: p["ops"].pop(0),
        "operator 0 is relu aten.relu.default [8, 16] in the placement, linear aten.linear.default [8, 16, 8] in the",
    ),
    "other arguments": (lambda p: p["fingerprint"].update(graph="0" * 64), "other arguments"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_placement_of_another_model(cutset: Cutset, tmp_path: Path, placement: Path, what: str) -> None:
    change, said = OTHERS[what]
    path = changed(placement, tmp_path / "cut.json", change)
    for command in (["check", path], ["train", TASK, "--placement", path, "--out", tmp_path / "run"]):
        refused(cutset(*command), BAD_INPUT, "E340", said, f"cutset plan {TASK}")


def test_a_placement_with_an_operator_half_missing(cutset: Cutset, tmp_path: Path, placement: Path) -> None:
    path = changed(placement, tmp_path / "cut.json", lambda p: p["ops"][0].update(boxes=p["ops"][0]["boxes"][:1]))
    outcome = cutset("check", path)
    assert outcome.code == BAD_INPUT
    assert "error E341: the boxes of operator linear do not cover" in outcome.err


def test_a_placement_for_another_task_than_the_one_named(cutset: Cutset, placement: Path, tmp_path: Path) -> None:
    said = "parameter 0.weight is float32[16, 8] in the placement, float32[128, 64] in the model"
    refused(cutset("check", placement, "cutset.models:digits"), BAD_INPUT, "E340", said)
    command = ["train", "cutset.models:digits", "--placement", placement, "--batch", 8, "--out", tmp_path]
    refused(cutset(*command), BAD_INPUT, "E340", said)


def test_a_batch_that_the_placement_was_not_made_for(cutset: Cutset, placement: Path, tmp_path: Path) -> None:
    outcome = cutset("train", TASK, "--placement", placement, "--batch", 4, "--out", tmp_path)
    refused(outcome, BAD_INPUT, "E344", "batches of 8", "batches of 4", "--batch 8")


# Numbers that are none -----------------------------------------------------------------------------------------------


def test_a_rate_that_is_far_too_large_ends_the_run(cutset: Cutset, tmp_path: Path) -> None:
    """The worker with the loss and the shard see it in the same step; either may be the first to say so."""
    options = ["--machines", 2, "--rule", "sgd", "--lr", "1e30", "--out", tmp_path, "--no-baseline"]
    outcome = cutset("train", TASK, *options)
    assert outcome.code == DIVERGED
    worker, shard = r"E702: the loss of worker-0\.\d at step 1 is", r"E701: .* on shard-\d .* of worker-0\.\d at step 1"
    assert re.search(f"error ({worker}|{shard})", outcome.err)
    assert "--lr" in outcome.err.partition("fix: ")[2]
    assert "Traceback" not in outcome.err


def test_the_last_step_may_not_ruin_the_parameters_unnoticed(cutset: Cutset, tmp_path: Path) -> None:
    """No loss is computed after it."""
    command = ["train", f"{WRONG}:loud_samples", "--batch", 96, "--rule", "sgd", "--lr", "3e38", "--out", tmp_path]
    outcome = cutset(*command)
    assert outcome.code == DIVERGED
    assert "error E703: one-process: the parameters are not finite after step 0\n" in outcome.err
    outcome = cutset(*command, "--no-baseline")
    assert outcome.code == DIVERGED
    assert re.search(r"error E701: the parameters on shard-0 .* with the push of worker-0.0 at step 0", outcome.err)


def test_one_process_that_diverges_is_named(cutset: Cutset, tmp_path: Path) -> None:
    outcome = cutset("train", f"{WRONG}:not_a_number", "--out", tmp_path)
    assert outcome.code == DIVERGED
    assert "error E702: the loss of one-process at step 0 is nan" in outcome.err
    assert "no step was taken yet" in outcome.err


# What is not the user's ----------------------------------------------------------------------------------------------


def test_a_bug_is_called_one(cutset: Cutset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("cutset.partition.placement.schema", broken)
    outcome = cutset("schema")
    assert outcome.code == 1
    assert "ZeroDivisionError" in outcome.err
    assert "this is a bug in cutset" in outcome.err


@pytest.mark.parametrize("arguments", [["plan", "no_such_module:net"], ["train", "no_such_module:net", "--out", "x"]])
def test_the_console_script_ends_the_same_way(tmp_path: Path, arguments: list[str]) -> None:
    command = [str(Path(sys.executable).with_name("cutset")), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    refused(Outcome(done.returncode, done.stdout, done.stderr), BAD_INPUT, "E301", "'no_such_module'")
