"""The code of a task that goes to other hosts."""

import sys
from pathlib import Path

import pytest

from cutset.errors import UsageError
from cutset.tools.hosts import task_code
from cutset.tools.hosts.task_code import collect_code


def write(path: Path, text: str = "x = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_comes_with_the_python_files_of_its_folder(tmp_path: Path) -> None:
    task, beside, below = (write(tmp_path / name) for name in ("task.py", "nets.py", "parts/blocks.py"))
    for name in ("data.csv", ".git/hook.py", "parts/__pycache__/blocks.py", "env/pyvenv.cfg", "env/lib/torch.py"):
        write(tmp_path / name)
    code = collect_code(f"{task}:make(width=8)")
    assert code.files == {"code/task.py": task, "code/nets.py": beside, "code/parts/blocks.py": below}
    assert code.name_on_host(f"{task}:make(width=8)", "/tmp/a") == "/tmp/a/code/task.py:make(width=8)"


def test_a_package_comes_whole_and_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "other.py")
    files = [write(tmp_path / "labour" / name) for name in ("__init__.py", "nets/__init__.py", "nets/wide.py")]
    code = collect_code("labour.nets.wide:make")
    assert code.files == {f"code/{file.relative_to(tmp_path)}": file for file in files}
    assert code.name_on_host("labour.nets.wide:make", "/tmp/a") == "labour.nets.wide:make"
    assert collect_code("other:make").files == {"code/other.py": tmp_path / "other.py"}


@pytest.mark.parametrize("model", ["cutset.models:digits", "torch.nn:Linear", "json:loads", "no_such_module:f"])
def test_what_is_installed_or_nowhere_does_not_travel(model: str) -> None:
    assert collect_code(model).files == {}


@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_BYTES"])
def test_a_home_folder_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(task_code, limit, 3)
    task, *_ = [write(tmp_path / f"task{number}.py") for number in range(5)]
    with pytest.raises(UsageError, match=str(tmp_path)) as caught:
        collect_code(f"{task}:make")
    assert caught.value.code == "E299"


def test_the_running_interpreter_keeps_its_modules() -> None:
    before = set(sys.modules)
    collect_code("cutset.models:digits")
    assert set(sys.modules) == before
