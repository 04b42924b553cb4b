"""What each folder may import and do: the import chain, and the things that no file does."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import FOLDERS, Module, read_modules

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once

ANYTHING_BUT_ZMQ = {
    *(
        "click",
        "greenlet",
        "msgspec",
        "networkx",
        "numpy",
        "prometheus_client",
        "pymetis",
        "rich",
        "safetensors",
        "torch",
    ),
}

# folder -> (folders of ours, packages of others) that it may import, beside itself, the ground floor and the standard
# library.
# tests/support/house.py has the order of the packages within a folder.
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "models": (set(), {"numpy", "torch"}),
    "partition": (set(), {"msgspec", "mtkahypar", "networkx", "numpy", "pymetis", "torch"}),
    "runtime": ({"models", "partition"}, {"cryptography", "msgspec", "numpy", "setproctitle", "torch", "zmq"}),
    "ps": ({"models", "partition", "runtime"}, {"msgspec", "numpy", "safetensors", "torch"}),
    "tools": ({"models", "partition", "runtime", "ps"}, ANYTHING_BUT_ZMQ),
    "api": ({"models", "partition", "runtime", "ps", "tools"}, ANYTHING_BUT_ZMQ),
}
GROUND = ("errors", "error_codes", "whole_file", "end_process", "__version__")
# Planning and models have no clock, no threads and no processes: the same input gives the same plan.
PURE = {"models", "partition"}
NOT_PURE = {"asyncio", "concurrent", "multiprocessing", "random", "select", "socket", "subprocess", "threading", "time"}
WATCHES_MODELS = {  # which may draw numbers, and must not where they matter
    "partition/trace/known_conditions.py": {"random", "threading"},
    "partition/trace/python_state.py": {"random"},
}
# Everything that would run what a socket or a file says. multiprocessing pickles what it passes on.
UNPICKLES = {"cloudpickle", "dill", "joblib", "marshal", "multiprocessing", "pickle", "shelve"}
RUNS_TEXT = {"__import__", "compile", "eval", "exec"}
UNPICKLING_CALLS = {"torch.load", "torch.save", "numpy.load", "np.load", "os.system", "os.popen"}
UNPICKLING_METHODS = {"recv_pyobj", "send_pyobj"}
EXCHANGE = "tools/exchange/forms.py"
READS_ENVIRONMENT = {
    "runtime/engines/ray_cluster.py",
    "runtime/engines/slurm.py",
    "runtime/engines/torchrun.py",
    "runtime/hosts/agent.py",
    "runtime/hosts/child.py",
    "runtime/hosts/leftovers.py",
    "runtime/hosts/role_process.py",
}
VAGUE = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}


def calls(file: Module) -> Iterator[tuple[str, ast.Call]]:
    """("torch.load", node) of every call whose function is written as names."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def wrong_imports(file: Module) -> Iterator[str]:
    folder = file.path.split("/")[0]
    ours, others = MAY_IMPORT[folder]
    for name, line in file.imports():
        top, *rest = name.split(".")
        if top == "cutset":
            allowed = rest[0] in {*ours, folder, *GROUND} or folder == "api"
        else:
            pure = folder not in PURE or top not in NOT_PURE - WATCHES_MODELS.get(file.path, set())
            allowed = top in others or (top in sys.stdlib_module_names and top not in UNPICKLES and pure)
        if not allowed:
            yield f"{file.path}:{line} imports {name}"


def forbidden_calls(file: Module) -> Iterator[str]:
    for name, call in calls(file):
        shell = any(k.arg == "shell" and getattr(k.value, "value", True) for k in call.keywords)
        prints = name == "print" and file.path.split("/")[0] != "tools"
        runs = name in RUNS_TEXT | UNPICKLING_CALLS or name.rpartition(".")[2] in UNPICKLING_METHODS
        if shell or prints or (runs and not is_safe_exchange(file, name, call)):
            yield f"{file.path}:{call.lineno} calls {ast.unparse(call)}"


def is_safe_exchange(file: Module, name: str, call: ast.Call) -> bool:
    """Whether a call writes a file of torch, or reads one with weights alone, where such files are exchanged.

    Or it reads arrays of numpy, and says that none of them may be pickled.
    """
    if name == "np.load" and any(
        k.arg == "allow_pickle" and getattr(k.value, "value", 1) is False for k in call.keywords
    ):
        return True
    weights_only = any(k.arg == "weights_only" and getattr(k.value, "value", False) is True for k in call.keywords)
    return file.path == EXCHANGE and (name == "torch.save" or (name == "torch.load" and weights_only))


def environment_reads(file: Module) -> Iterator[str]:
    if file.path.split("/")[0] == "tools" or file.path in READS_ENVIRONMENT:
        return
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"} and ast.unparse(node.value) == "os":
            yield f"{file.path}:{node.lineno} reads the environment"


@pytest.fixture(scope="module")
def all_sources() -> list[Module]:
    found = read_modules()
    assert {file.path.split("/")[0] for file in found} == set(FOLDERS)
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
    assert len(list(wrong_imports(Module(path, text)))) == 1


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
    assert list(wrong_imports(Module(path, text))) == []


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
    assert len(list(forbidden_calls(Module("ps/a.py", text)))) == 1


def test_allowed_calls_pass():
    assert list(forbidden_calls(Module("ps/a.py", "model.eval()\nre.compile('x')\nrun(['ls'], shell=False)"))) == []
    assert list(forbidden_calls(Module("tools/a.py", "print(1)"))) == []


def test_reading_the_environment_is_found():
    assert len(list(environment_reads(Module("ps/a.py", "os.environ['A']\nos.getenv('B')")))) == 2
    assert list(environment_reads(Module("tools/a.py", "os.environ['A']"))) == []
