"""The command line: what it prints when all is well; for bad input a code, the facts, the fix and an exit code."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import BAD_INPUT, INFEASIBLE, USAGE, Cutset, Outcome, refused
from places import USER_MODELS

MODELS = USER_MODELS
GOOD, WRONG = MODELS / "good.py", MODELS / "wrong.py"
TASK = f"{GOOD}:task"


@pytest.fixture(scope="module")
def placement(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A placement of the small task over two machines."""
    from cutset.tools.task.capture_task import capture_task
    from cutset.tools.task.load_task import TaskSpec
    from cutset.tools.task.plan_request import PlanRequest
    from cutset.tools.task.plan_task import plan_task

    spec = TaskSpec(TASK)
    path = tmp_path_factory.mktemp("placement") / "good.json"
    plan_task(capture_task(spec), spec, PlanRequest(machines=2, candidates="slices")).placement.save(path)
    return path


# All is well ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_told_written_checked_and_shown(cutset: Cutset, tmp_path: Path) -> None:
    file = tmp_path / "cut.json"
    told = cutset("plan", TASK, "--machines", 2, "-o", file)
    assert told.code == 0
    assert "* chosen: " in told.out
    assert told.out.endswith(f"written to {file}; look at it with: cutset show {file}\n")
    assert cutset("check", file, TASK) == Outcome(0, f"{file} fits {TASK}: 2 machines\n", "")
    shown = cutset("show", file, "--html", tmp_path / "cut.html", "--svg", tmp_path / "cut.svg")
    assert shown.code == 0
    assert told.out.startswith(shown.out.partition("written")[0])
    assert (tmp_path / "cut.html").read_text().startswith("<!doctype html>")
    assert "</svg>" in (tmp_path / "cut.svg").read_text()


def test_json_is_all_that_is_printed(cutset: Cutset, placement: Path) -> None:
    plan = cutset("plan", TASK, "--machines", 2, "--candidates", "slices", "--json")
    assert plan == Outcome(0, placement.read_text(), "")
    assert cutset("show", placement, "--json").out == placement.read_text()
    assert json.loads(cutset("check", placement, TASK, "--json").out)["ok"] is True
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
    assert "clouds: 195 parameters, 3.06 k FLOP forward for 8 samples; 100 % of the FLOPs, " in outcome.out


@pytest.mark.parametrize(
    ("name", "said"), [("branches", ["if y.mean() > 0:", "(model)", "not traced"]), ("counts", ["island_item", "data"])]
)
def test_inspect_lists_islands(cutset: Cutset, name: str, said: list[str]) -> None:
    outcome = cutset("inspect", f"{WRONG}:{name}")
    assert outcome.code == 0
    assert all(word in " ".join(outcome.out.split()) for word in said)


@pytest.mark.run
def test_a_bare_module_can_be_planned_and_checked(cutset: Cutset, tmp_path: Path) -> None:
    file = tmp_path / "cut.json"
    assert cutset("plan", f"{GOOD}:module", "--input", "4x8", "--batch", 6, "-o", file).code == 0
    assert cutset("check", file, f"{GOOD}:module", "--input", "4x8").code == 0


def test_help_and_version_do_not_load_torch() -> None:
    code = """
        import sys
        from cutset.tools.commands import cli
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


# The command itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["train"], "Missing argument 'TASK'"),
        (["show"], "Missing argument 'PLACEMENT'"),
        (["plan", TASK, "--machines", "two"], "'two' is not a valid integer"),
        (["train", TASK, "--lr", "fast"], "'fast' is not a valid float"),
        (["train", TASK, "--repicas", "2"], "No such option '--repicas'"),
    ],
)
def test_a_command_put_together_wrongly(cutset: Cutset, arguments: list[str], said: str) -> None:
    outcome = cutset(*arguments)
    assert (outcome.code, outcome.out) == (USAGE, "")
    assert said in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["plan", TASK, "--batch", "0"], "E220", ["--batch 0", "at least 1"]),
        (["plan", TASK, "--seed", "-1"], "E220", ["--seed -1", "0 to 4294967295"]),
        (["plan", TASK, "--objective", "speed"], "E208", ["--objective speed", "time or bytes or memory"]),
        (["plan", TASK, "--machines", "2", "--max-machines", "3"], "E203", ["--machines", "--max-machines"]),
        (["train", TASK, "--target", "95"], "E225", ["--target 95.0", "0 to 1"]),
        (["train", TASK, "--placement", "cut.json", "--machines", "2"], "E228", ["--machines", "--placement"]),
        (["eval", TASK, "--placement", "cut.json", "--machines", "2"], "E228", ["--machines", "--placement"]),
        (["eval", TASK, "--word-vectors"], "E218", ["--questions"]),
        (["eval", TASK, "--near", "king"], "E218", ["--word-vectors"]),
    ],
)
def test_options_that_mean_nothing(cutset: Cutset, arguments: list[str], code: str, said: list[str]) -> None:
    refused(cutset(*arguments), USAGE, code, *said)


def test_a_file_that_cannot_be_written(cutset: Cutset, placement: Path, tmp_path: Path) -> None:
    path = tmp_path / "no such folder" / "cut"
    for command in (["show", placement, "--html"], ["show", placement, "--svg"], ["plan", TASK, "-o"]):
        refused(cutset(*command, path), USAGE, "E222", str(path), "there is no folder")


# Machines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machines", [0, -1, 100_000])
def test_no_or_absurdly_many_machines(cutset: Cutset, machines: int) -> None:
    refused(cutset("plan", TASK, "--machines", machines), USAGE, "E201", f"{machines} machines", "1 to 4096")


@pytest.mark.run
def test_more_machines_than_the_model_has_parts(cutset: Cutset, tmp_path: Path) -> None:
    ended = cutset("plan", TASK, "--machines", 300, "--out", tmp_path / "cut.json")
    assert ended.code == 0
    said = "No plan gives each of 300 machines a part of the model, so 172 of 300 machines are left out. Not worth"
    assert " ".join(ended.out.split()).startswith(said)
    refused(cutset("plan", TASK, "--machines", 211, "--candidates", "metis"), INFEASIBLE, "E403", "211 machines")


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
def test_no_command_shows_a_traceback_of_the_users_code(
    cutset: Cutset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(cutset(command, f"{WRONG}:raises"), BAD_INPUT, "E303", "wrong.py:", "KeyError: 'hidden_size'")


@pytest.mark.first_cases(2)
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
        ("loss_without_gradient", BAD_INPUT, "E322", ["no gradient", "argmax"]),
        ("example_is_a_tensor", BAD_INPUT, "E312", ["gives a Tensor"]),
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


# Placement files -----------------------------------------------------------------------------------------------------


def changed(placement: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the placement in which something is different."""
    content = json.loads(placement.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "content",
    ["", '{\n "format": 2,\n "model": "a', '{"form', "[]", "null", '"cut"', "not json", "\x00\xff", DEEP],
    ids=lambda content: repr(content[:30]),
)
def test_a_placement_file_that_is_none(cutset: Cutset, tmp_path: Path, content: str) -> None:
    """A plan is to take its place only if it was one, or nothing."""
    path = tmp_path / "cut.json"
    path.write_text(content, encoding="latin-1")
    fix = f"cutset plan TASK -o {path if not content or 'model' in content else 'NEW.json'}"
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
def test_a_damaged_placement_file(
    cutset: Cutset, tmp_path: Path, placement: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
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


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.run
def test_a_placement_of_another_model(cutset: Cutset, tmp_path: Path, placement: Path, what: str) -> None:
    change, said = OTHERS[what]
    path = changed(placement, tmp_path / "cut.json", change)
    for command in (["check", path, TASK], ["train", TASK, "--placement", path, "--out", tmp_path / "run"]):
        refused(cutset(*command), BAD_INPUT, "E340", said, f"cutset plan {TASK}")


def test_a_placement_with_an_operator_half_missing(cutset: Cutset, tmp_path: Path, placement: Path) -> None:
    path = changed(placement, tmp_path / "cut.json", lambda p: p["ops"][0].update(boxes=p["ops"][0]["boxes"][:1]))
    outcome = cutset("check", path, TASK)
    assert outcome.code == BAD_INPUT
    assert "error E341: the boxes of operator linear do not cover" in outcome.err


@pytest.mark.run
def test_a_placement_for_another_task_than_the_one_named(cutset: Cutset, placement: Path, tmp_path: Path) -> None:
    said = "parameter 0.weight is float32[16, 8] in the placement, float32[128, 64] in the model"
    refused(cutset("check", placement, "cutset.models:digits"), BAD_INPUT, "E340", said)
    command = ["train", "cutset.models:digits", "--placement", placement, "--batch", 8, "--out", tmp_path]
    refused(cutset(*command), BAD_INPUT, "E340", said)


def test_a_batch_that_the_placement_was_not_made_for(cutset: Cutset, placement: Path, tmp_path: Path) -> None:
    outcome = cutset("train", TASK, "--placement", placement, "--batch", 4, "--out", tmp_path)
    refused(outcome, BAD_INPUT, "E344", "batches of 8", "batches of 4", "--batch 8")


# What is not the user's ----------------------------------------------------------------------------------------------


def test_a_bug_is_called_one(cutset: Cutset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("cutset.partition.placement.placement_file.schema", broken)
    outcome = cutset("schema")
    assert outcome.code == 1
    assert "ZeroDivisionError" in outcome.err
    assert "this is a bug in cutset" in outcome.err


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8388608 bytes.")],
)
def test_running_out_of_memory_is_said_in_words(
    cutset: Cutset, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr("cutset.partition.placement.placement_file.schema", broken)
    outcome = cutset("schema")
    assert outcome.code == 6
    assert "error E609: this process ran out of memory" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("arguments", [["plan", "no_such_module:net"], ["train", "no_such_module:net", "--out", "x"]])
def test_the_console_script_ends_the_same_way(tmp_path: Path, arguments: list[str]) -> None:
    command = [str(Path(sys.executable).with_name("cutset")), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    refused(Outcome(done.returncode, done.stdout, done.stderr), BAD_INPUT, "E301", "'no_such_module'")
