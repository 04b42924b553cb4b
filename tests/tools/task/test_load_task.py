"""Import strings of every kind lead to a task; what is wrong with the user's own code is BadInput that names it."""

import sys
from pathlib import Path

import pytest
import torch
from places import USER_MODELS
from torch import nn

from cutset.errors import BadInput, CutsetError, UsageError
from cutset.models.task import Task
from cutset.tools.samples.read_samples import example_batch, read_split
from cutset.tools.task.load_task import TaskSpec, build_model, load_task

MODELS = USER_MODELS
GOOD, WRONG = MODELS / "good.py", MODELS / "wrong.py"


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


def refusal(model: str | Path, **more: object) -> CutsetError:
    with pytest.raises(CutsetError) as caught:
        load_task(TaskSpec(str(model), **more))  # type: ignore[arg-type]
    return caught.value


def load(name: str, **more: object) -> Task:
    return load_task(TaskSpec(f"{GOOD}:{name}", **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["task", "instance"])
def test_a_factory_and_a_task_in_hand_are_tasks(name: str) -> None:
    task = load(name)
    assert (task.name, task.batch) == ("clouds", 8)
    assert [len(read_split(task, split)) for split in ("train", "test")] == [96, 50]


@pytest.mark.parametrize("name", ["module", "Net", "module_instance"])
def test_a_module_becomes_a_task_with_a_loss_and_an_example(name: str) -> None:
    task = load(name, inputs=("4x8",))
    assert (task.name, task.batch, task.data) == (name, 4, None)
    example = example_batch(task, 6)
    assert [t.shape for t in example.inputs] == [(6, 8)]
    assert task.loss(build_model(task, seed=0)(*example.inputs)).shape == ()


def test_a_module_class_is_made_anew_with_each_seed() -> None:
    task = load("Net", inputs=("4x8",))
    first, again, other = (build_model(task, seed=seed).layer.weight for seed in (1, 1, 2))  # type: ignore[union-attr]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_inputs_have_shapes_and_dtypes() -> None:
    task = load("module", inputs=("2x3x5", "2X7:int64"))
    assert [(t.shape, t.dtype) for t in example_batch(task, 2).inputs] == [
        ((2, 3, 5), torch.float32),
        ((2, 7), torch.int64),
    ]


def test_the_data_option_reaches_the_factory() -> None:
    assert load("from_disk", data="clouds:here").name == "clouds"
    task = load("module_from_disk", data="wide:5", inputs=("2x8",))
    assert build_model(task, seed=0).out_features == 5


def test_a_module_of_the_working_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console script does not have it on its path."""
    (tmp_path / "cutset_test_mine.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(2, 2)\n")
    monkeypatch.chdir(tmp_path)
    assert load_task(TaskSpec("cutset_test_mine:net", inputs=("1x2",))).name == "net"
    sys.modules.pop("cutset_test_mine")


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "cutset_test_neighbour.py").write_text("WIDTH = 5\n")
    file = tmp_path / "user.py"
    file.write_text(
        "from cutset_test_neighbour import WIDTH\nfrom torch import nn\n\ndef net():\n    return nn.Linear(2, WIDTH)\n"
    )
    task = load_task(TaskSpec(f"{file}:net", inputs=("1x2",)))
    assert build_model(task, seed=0).out_features == 5
    sys.modules.pop("cutset_test_neighbour")


def test_arguments_reach_the_factory() -> None:
    assert load("module_from_disk(data='wide:5')", inputs=("2x8",)).name == "module_from_disk"
    task = load_task(TaskSpec("cutset.models:transformer(layers=1,width=24,heads=3,context=5)"))
    model = build_model(task, seed=0, device="meta")
    assert (len(model.blocks), model.positions.weight.shape) == (1, (5, 24))  # type: ignore[arg-type, union-attr]
    assert example_batch(task, 2).inputs[0].shape == (2, 5)


# What is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cutset.models", "cutset.models:", ":digits", "net.py"])
def test_a_name_without_a_factory(name: str) -> None:
    error = refusal(name)
    assert isinstance(error, UsageError)
    assert error.code == "E210"
    assert repr(name) in error.facts
    assert "FACTORY" in error.fix


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:net", "'no_such_module'"),
        ("torch.no_such_module:net", "'torch.no_such_module'"),
        ("no/such/file.py:net", "no file no/such/file.py"),
        ("..:net", "'..'"),
    ],
)
def test_a_module_that_is_not_there(name: str, said: str) -> None:
    error = refusal(name)
    assert isinstance(error, BadInput)
    assert error.code == "E301"
    assert said in error.facts
    assert error.fix


def test_a_file_named_without_its_ending_is_found() -> None:
    error = refusal(f"{GOOD.with_suffix('')}:task")
    assert (error.code, error.fix) == ("E301", f"{GOOD}:task")


def test_a_missing_factory_is_looked_for_among_those_that_are_there() -> None:
    error = refusal(f"{GOOD}:tsk")
    assert error.code == "E302"
    assert "has no 'tsk'; it has Gated" in error.facts
    assert "Tensor" not in error.facts
    assert error.fix == f"{GOOD}:task"
    assert refusal("cutset.models:digit").fix == "cutset.models:digits"


@pytest.mark.parametrize(
    ("code", "line", "said"),
    [
        ("import torch\n\ndef net(:\n    pass\n", 3, "SyntaxError"),
        ("import torch\nimport no_such_library\n", 2, "No module named 'no_such_library'"),
        ("from torch import no_such_name\n", 1, "cannot import name 'no_such_name'"),
        ("import torch\n\n\nwidth = 1 / 0\n", 4, "ZeroDivisionError"),
        ("import sys\nsys.exit('no arguments')\n", 2, "SystemExit: no arguments"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_its_line(tmp_path: Path, code: str, line: int, said: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(code)
    error = refusal(f"{file}:net")
    assert isinstance(error, BadInput)
    assert error.code == "E303"
    assert f"{file}:{line}" in error.facts
    assert said in error.facts
    assert error.fix == f"correct it there; the whole traceback: python {file}"


def test_a_module_that_cannot_be_imported_is_named_with_the_line_of_the_one_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cutset_test_outer.py").write_text("import cutset_test_inner\n")
    inner = tmp_path / "cutset_test_inner.py"
    inner.write_text("\n\nraise RuntimeError('no licence')\n")
    monkeypatch.chdir(tmp_path)
    error = refusal("cutset_test_outer:net")
    assert error.code == "E303"
    assert f"{inner}:3 (raise RuntimeError('no licence')): RuntimeError: no licence" in error.facts


def test_code_that_is_installed_is_the_users_own_too(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "broken.py"
    file.parent.mkdir()
    file.write_text("import torch\ntorch.zeros(-1)\n")
    assert f"{file}:2" in refusal(f"{file}:net").facts


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("gives_text", "E304", "gives a str, not a cutset.Task or a torch.nn.Module"),
        ("gives_nothing", "E304", "gives a NoneType"),
        ("constant", "E304", "gives an int"),
        ("raises", "E303", '(raise KeyError("hidden_size")): KeyError'),
        ("exits", "E303", "SystemExit: no configuration found"),
        ("needs_arguments", "E305", "missing a required argument: 'width'"),
        ("no_batch", "E312", "task 'wrong' has batch=0"),
    ],
)
def test_a_factory_that_gives_no_task(name: str, code: str, said: str) -> None:
    error = refusal(f"{WRONG}:{name}")
    assert isinstance(error, BadInput)
    assert error.code == code
    assert said in error.facts
    assert error.fix


@pytest.mark.parametrize(
    ("name", "more", "code"),
    [
        ("task", {"data": "mnist:here"}, "E211"),
        ("module", {}, "E212"),
        ("module", {"inputs": ("32xabc",)}, "E213"),
        ("module", {"inputs": ("0x8",)}, "E213"),
        ("module", {"inputs": ("4x8:int33",)}, "E213"),
        ("task", {"inputs": ("4x8",)}, "E214"),
    ],
)
def test_options_that_do_not_suit_what_is_named(name: str, more: dict[str, object], code: str) -> None:
    error = refusal(f"{GOOD}:{name}", **more)
    assert isinstance(error, UsageError)
    assert error.code == code
    assert error.fix


@pytest.mark.parametrize(
    ("model", "code", "said", "fix"),
    [
        (
            "cutset.models:transformer(widht=8)",
            "E216",
            "takes no argument 'widht'; it takes layers, width",
            "width=...",
        ),
        ("cutset.models:digits(layers=8)", "E216", "takes no argument 'layers'; it takes none", "leave it out"),
        (f"{GOOD}:instance(width=8)", "E216", "instance is a Task and takes no arguments", "leave them out"),
        ("cutset.models:transformer(width=a)", "E215", "width=a is no number", "transformer(layers=12,width=768)"),
    ],
)
def test_arguments_that_the_factory_does_not_take(model: str, code: str, said: str, fix: str) -> None:
    error = refusal(model)
    assert isinstance(error, UsageError)
    assert error.code == code
    assert said in error.facts
    assert fix in error.fix


def test_arguments_that_are_not_enough_or_wrong_or_given_twice() -> None:
    error = refusal(f"{WRONG}:needs_arguments()")
    assert (error.code, "without arguments: missing a required" in error.facts) == ("E305", True)
    error = refusal("cutset.models:transformer(width=30)")
    assert (error.code, error.facts) == ("E312", "width=30 does not divide into heads=4")
    assert refusal(f"{GOOD}:from_disk(data='clouds:here')", data="clouds:here").code == "E211"


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("model_raises", "E303", "negative dimension -1"),
        ("model_gives_text", "E304", "gives str, not a torch.nn.Module"),
        ("model_is_no_function", "E304", "is a Sequential, not a function"),
        ("model_reads_a_file", "E303", "weights.pt"),
    ],
)
def test_a_model_that_cannot_be_made(name: str, code: str, said: str) -> None:
    task = load_task(TaskSpec(f"{WRONG}:{name}"))
    with pytest.raises(BadInput, match=code) as caught:
        build_model(task, seed=0)
    assert said in caught.value.facts
    assert "models/task.py" not in caught.value.facts
    assert caught.value.fix


def test_the_model_of_a_bare_module_keeps_its_weights() -> None:
    task = load("module_instance", inputs=("4x8",))
    model = build_model(task, seed=0)
    assert isinstance(model, nn.Module)
    assert model is build_model(task, seed=1)
