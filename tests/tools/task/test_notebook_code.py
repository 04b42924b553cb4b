"""Functions of a notebook become files: what they use comes with them, and what cannot is named."""

import linecache
import runpy
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cutset.errors import BadInput
from cutset.tools.task.factory_name import name_factory


class Notebook:
    """Runs cells as a kernel of Jupyter does: compiled under a name of no file, whose source linecache knows."""

    def __init__(self, folder: Path) -> None:
        self.module = ModuleType("__main__")
        self._folder, self._cells = folder, 0

    def run(self, cell: str) -> None:
        self._cells += 1
        name = str(self._folder / f"ipykernel_1/{self._cells}.py")
        text = textwrap.dedent(cell)
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), vars(self.module))

    def __getitem__(self, name: str) -> Any:
        return getattr(self.module, name)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    monkeypatch.chdir(tmp_path)
    made = Notebook(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", made.module)
    return made


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(name.rpartition(":")[0])


def test_all_that_a_function_uses_comes_with_it(notebook: Notebook) -> None:
    notebook.run("""
        import math as m
        from pathlib import PurePath
        import torch
        WIDTH, NAMES, KIND = 8, {"a": (1,), "b": [2.5, float("inf")]}, torch.float64
        x = torch.ones(3)  # the function has one of its own
    """)
    notebook.run("""
        def twice(function):
            return lambda *args: 2 * function(*args)

        @twice
        def half(x):
            return x / 2
    """)
    notebook.run("""
        class Base(torch.nn.Module):
            def scale(self):
                return half(WIDTH)

        class Net(Base):
            def __init__(self, width=WIDTH):
                super().__init__()
                self.layer = torch.nn.Linear(width, 2, dtype=KIND)
    """)
    notebook.run("""
        def task(count: int = len(NAMES)):
            x = Net()
            again = [task for _ in range(count)]  # itself
            return x, m.pi, PurePath("a"), NAMES, again[0]
    """)
    name = name_factory(notebook["task"])
    found = load(name)
    net, pi, path, names, itself = found["task"]()
    assert (pi, path.name, names) == (3.141592653589793, "a", {"a": (1,), "b": [2.5, float("inf")]})
    assert itself is found["task"]
    assert (net.scale(), net.layer.weight.dtype) == (8.0, notebook["KIND"])
    assert Path(name.rpartition(":")[0]).is_relative_to(Path.cwd() / "runs" / "notebooks")
    assert name_factory(notebook["task"]) == name, "the same code has the same file"


def test_a_cell_that_is_run_again_counts(notebook: Notebook) -> None:
    notebook.run("def task():\n    return 1\n")
    first = name_factory(notebook["task"])
    notebook.run("def task():\n    return 2\n")
    second = name_factory(notebook["task"])
    assert first != second
    assert [load(name)["task"]() for name in (first, second)] == [1, 2]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (
            "import torch\nweights = torch.ones(2)\ndef task():\n    return weights",
            "task uses weights, which is a Tensor",
        ),
        ("import torch\nnet = torch.nn.Linear(1, 1)\ndef task():\n    return net", "task uses net, which is a Linear"),
        ("loss = lambda x: x\ndef task():\n    return loss(1)", "loss is not defined by that name"),
        ("if True:\n    def task():\n        return 1", "task is not defined by that name at the left margin"),
        ("a = [object()]\ndef inner():\n    return a\ndef task():\n    return inner()", "function inner uses a"),
    ],
)
def test_what_cannot_be_written_is_named(notebook: Notebook, cell: str, said: str) -> None:
    notebook.run(cell)
    with pytest.raises(BadInput, match=said) as caught:
        name_factory(notebook["task"])
    assert caught.value.code == "E307"
    assert not (Path.cwd() / "runs").exists()
