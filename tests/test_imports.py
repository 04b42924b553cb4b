"""What each folder may import and do: the import chain, and the things that no file does."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHAIN = ("models", "partition", "runtime", "ps", "tools", "api")
ANYTHING_BUT_ZMQ = {"click", "msgspec", "networkx", "numpy", "pymetis", "rich", "safetensors", "torch"}

# folder -> (folders of ours, packages of others) that it may import, beside itself and the standard library
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "models": (set(), {"numpy", "torch"}),
    "partition": (set(), {"msgspec", "mtkahypar", "networkx", "numpy", "pymetis", "torch"}),
    "runtime": ({"models", "partition"}, {"msgspec", "numpy", "torch", "zmq"}),
    "ps": ({"models", "partition", "runtime"}, {"msgspec", "numpy", "safetensors", "torch"}),
    "tools": ({"models", "partition", "runtime", "ps"}, ANYTHING_BUT_ZMQ),
    "api": ({"models", "partition", "runtime", "ps", "tools"}, ANYTHING_BUT_ZMQ),
}
# Planning and models have no clock, no threads and no processes: the same input gives the same plan.
PURE = {"models", "partition"}
NOT_PURE = {"asyncio", "concurrent", "multiprocessing", "random", "select", "socket", "subprocess", "threading", "time"}
# Everything that would run what a socket or a file says. multiprocessing pickles what it passes on.
UNPICKLES = {"cloudpickle", "dill", "joblib", "marshal", "multiprocessing", "pickle", "shelve"}
RUNS_TEXT = {"__import__", "compile", "eval", "exec"}
UNPICKLING_CALLS = {"torch.load", "torch.save", "numpy.load", "np.load", "os.system", "os.popen"}
UNPICKLING_METHODS = {"recv_pyobj", "send_pyobj"}
READS_ENVIRONMENT = {"runtime/child.py", "runtime/launcher.py"}
VAGUE = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}


@dataclass(frozen=True)
class Source:
    """One file: its path below the root, and its syntax tree."""

    path: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.path.split("/")[0]

    def imports(self) -> Iterator[tuple[str, int]]:
        """(module, line) of every import, wherever it stands; ours begin with "cutset."."""
        package = ["cutset", *self.path.removeprefix("api/").split("/")[:-1]]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            if isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*above, *filter(None, [node.module])])
                names = [f"cutset.{alias.name}" for alias in node.names] if module == "cutset" else [module]
                yield from ((name, node.lineno) for name in names)

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """("torch.load", node) of every call whose function is written as names."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield ast.unparse(node.func), node


def source(path: str, text: str) -> Source:
    return Source(path, ast.parse(text))


def sources() -> list[Source]:
    files = sorted(path for folder in CHAIN for path in (ROOT / folder).rglob("*.py"))
    return [source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in files]


def wrong_imports(file: Source) -> Iterator[str]:
    ours, others = MAY_IMPORT[file.folder]
    for module, line in file.imports():
        top, _, rest = module.partition(".")
        if top == "cutset":
            folder = rest.partition(".")[0]
            allowed = folder in {*ours, file.folder, "__version__"} or file.folder == "api"
        else:
            pure = file.folder not in PURE or top not in NOT_PURE
            allowed = top in others or (top in sys.stdlib_module_names and top not in UNPICKLES and pure)
        if not allowed:
            yield f"{file.path}:{line} imports {module}"


def forbidden_calls(file: Source) -> Iterator[str]:
    for name, call in file.calls():
        shell = any(k.arg == "shell" and getattr(k.value, "value", True) for k in call.keywords)
        prints = name == "print" and file.folder != "tools"
        runs = name in RUNS_TEXT | UNPICKLING_CALLS or name.rpartition(".")[2] in UNPICKLING_METHODS
        if shell or prints or runs:
            yield f"{file.path}:{call.lineno} calls {ast.unparse(call)}"


def environment_reads(file: Source) -> Iterator[str]:
    if file.folder == "tools" or file.path in READS_ENVIRONMENT:
        return
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"} and ast.unparse(node.value) == "os":
            yield f"{file.path}:{node.lineno} reads the environment"


@pytest.fixture(scope="module")
def all_sources() -> list[Source]:
    found = sources()
    assert {file.folder for file in found} == set(CHAIN)
    return found


def test_imports_run_one_way(all_sources):
    assert [fault for file in all_sources for fault in wrong_imports(file)] == []


def test_nothing_is_printed_unpickled_or_run_from_text(all_sources):
    assert [fault for file in all_sources for fault in forbidden_calls(file)] == []


def test_the_environment_is_read_by_the_command_line_and_at_start_alone(all_sources):
    assert [fault for file in all_sources for fault in environment_reads(file)] == []


def test_every_module_says_what_it_is(all_sources):
    assert [file.path for file in all_sources if not ast.get_docstring(file.tree)] == []


def test_every_module_is_named_for_an_idea(all_sources):
    assert [file.path for file in all_sources if Path(file.path).stem in VAGUE] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("models/a.py", "import msgspec"),
        ("models/a.py", "from ..partition import graph"),
        ("models/a.py", "import time"),
        ("partition/a.py", "from ..models.task import Task"),
        ("partition/a.py", "def f():\n    import threading"),
        ("partition/a.py", "from .. import runtime"),
        ("runtime/a.py", "if TYPE_CHECKING:\n    from ..ps.client import Client"),
        ("runtime/a.py", "from pickle import loads"),
        ("runtime/a.py", "import cutset.tools.commands.cli"),
        ("ps/a.py", "import zmq.asyncio"),
        ("tools/a.py", "from cutset import plan"),
        ("tools/a.py", "import zmq"),
        ("api/__init__.py", "import requests"),
    ],
)
def test_a_wrong_import_is_found(path, text):
    assert len(list(wrong_imports(source(path, text)))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("models/a.py", "from .task import Task\nimport torch.nn, gzip"),
        ("partition/a.py", "from .. import __version__\nfrom . import box"),
        ("runtime/a.py", "from ..models.task import Data\nfrom zmq.utils import z85\nimport time"),
        ("tools/a.py", "from ..ps import client\nimport rich.console"),
        ("api/__init__.py", "from .models.task import Task\nfrom . import partition\nfrom .tools import cli"),
    ],
)
def test_a_right_import_passes(path, text):
    assert list(wrong_imports(source(path, text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "print(1)",
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "socket.recv_pyobj()",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "os.system('ls')",
    ],
)
def test_a_forbidden_call_is_found(text):
    assert len(list(forbidden_calls(source("ps/a.py", text)))) == 1


def test_allowed_calls_pass():
    assert list(forbidden_calls(source("ps/a.py", "model.eval()\nre.compile('x')\nrun(['ls'], shell=False)"))) == []
    assert list(forbidden_calls(source("tools/a.py", "print(1)"))) == []


def test_reading_the_environment_is_found():
    assert len(list(environment_reads(source("ps/a.py", "os.environ['A']\nos.getenv('B')")))) == 2
    assert list(environment_reads(source("tools/a.py", "os.environ['A']"))) == []
