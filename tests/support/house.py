"""How the sources are laid out: sizes of folders, modules and functions, floors of packages, and circles of imports.

`python tests/support/house.py` prints what is wrong and fails if anything is; `make lint` runs it. Complexity is
ruff's (C901 in pyproject.toml).
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("models", "partition", "runtime", "ps", "tools", "api")
MAX_MODULES, MAX_LINES, MAX_FUNCTION_LINES = 15, 350, 60

# From the ground up: a module imports only from its own package and from packages on lower floors. A line is a floor.
# What stands beside the packages of a folder (api/errors.py, tools/train.py) has a floor of its own; the face of a
# package, its __init__.py, may import from all that is in it.
FLOORS = """
api/errors.py api/whole_file.py api/end_process.py
models
models/readers
models/tasks
partition/ir
partition/operators/sharding
partition/operators/rules
partition/operators
partition/trace partition/recurrence
partition/discovery
partition/draft partition/repeats
partition/capture partition/cluster
partition/dataflow
partition/mincut
partition/layouts
partition/planner
partition/placement partition/whole_run
runtime/sealing runtime/held_memory.py runtime/local_sockets.py
runtime/channel runtime/deferred_init
runtime/hosts
runtime/joining runtime/launcher
runtime/engines
runtime/worker
runtime/replica
ps
ps/optimizers
ps/slices
ps/checkpoint ps/client
ps/server
ps/sandblaster
ps/methods
tools
tools/samples tools/measured
tools/task tools/unfinished
tools/config
tools/job
tools/evaluation tools/exchange tools/probe tools/hosts tools/leases tools/whole_run
tools/doctor tools/selection tools/replica
tools/scripts
tools/training
tools/sandblaster
tools/virtual_time
tools/analysis
tools/figures
tools/report tools/tracking
tools/watching
tools/train.py
tools/python
tools/bench
tools/bench/device_placement/graphs
tools/bench/*
tools/bench/virtual_time
tools/bench/summary
tools/bench/commands
tools/commands
api
"""


@dataclass(frozen=True)
class Module:
    """One source file: its path below the root, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def is_face(self) -> bool:
        """Whether it is the `__init__.py` of a package."""
        return self.path.endswith("/__init__.py")

    @property
    def name(self) -> str:
        """The dotted name it is imported by."""
        parts = ["cutset", *self.path.removeprefix("api/").removesuffix(".py").split("/")]
        return ".".join(parts[:-1] if self.is_face else parts)

    @property
    def package(self) -> str:
        """The dotted name that its relative imports start from."""
        return self.name if self.is_face else self.name.rpartition(".")[0]

    def imports(self) -> Iterator[tuple[str, int]]:
        """Yield (dotted name, line) of each name that an import brings, wherever the import stands."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                parts = self.package.split(".")
                above = parts[: len(parts) - node.level + 1] if node.level else []
                base = ".".join([*above, *filter(None, [node.module])])
                yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


@cache
def read_modules(root: Path = ROOT) -> Sequence[Module]:
    """Read all source files below a root, once."""
    files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return [Module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in files]


def find_oversized(modules: Sequence[Module]) -> Iterator[str]:
    """Name folders with too many modules, and modules and functions that are too long."""
    counts: dict[str, int] = {}
    for module in modules:
        folder = module.path.rpartition("/")[0]
        counts[folder] = counts.get(folder, 0) + (not module.is_face)
        lines = len(module.text.splitlines())
        if lines > MAX_LINES:
            yield f"{module.path} has {lines} lines; {MAX_LINES} at most"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    yield f"{module.path}:{node.lineno} {node.name} has {length} lines; {MAX_FUNCTION_LINES} at most"
    for folder, count in counts.items():
        if count > MAX_MODULES:
            yield f"{folder}/ has {count} modules; {MAX_MODULES} at most"


def import_graph(modules: Sequence[Module]) -> "nx.DiGraph[Module]":
    """Build the graph of who imports whom among the modules, imports for type checkers included."""
    by_name = {module.name: module for module in modules}
    graph: nx.DiGraph[Module] = nx.DiGraph()
    graph.add_nodes_from(modules)
    for module in modules:
        for name, _ in module.imports():
            target = by_name.get(name) or by_name.get(name.rpartition(".")[0])
            if target is not None and target != module:
                graph.add_edge(module, target)
    return graph


def find_circles(modules: Sequence[Module]) -> Iterator[str]:
    """Name the modules that import each other, directly or by way of others.

    The lazy faces of `cutset` and `cutset.models` name what is below them for type checkers, and are not counted.
    """
    graph = import_graph([module for module in modules if not (module.is_face and module.name.count(".") < 2)])
    for circle in nx.strongly_connected_components(graph):
        if len(circle) > 1:
            yield "a circle of imports: " + ", ".join(sorted(module.path for module in circle))


def read_floors(text: str = FLOORS) -> dict[str, int]:
    """Number the floors: package or module -> height."""
    return {place: height for height, line in enumerate(text.split("\n")) for place in line.split()}


def find_floor(path: str, floors: Mapping[str, int]) -> tuple[str, int] | None:
    """The place that a file belongs to, and its height; None if the list has no floor for it."""
    if path in floors:
        return path, floors[path]
    folder = path.rpartition("/")[0]
    for place in (folder, folder.rpartition("/")[0] + "/*"):
        if place in floors:
            return folder, floors[place]
    return None


def find_floor_faults(modules: Sequence[Module], floors: Mapping[str, int] | None = None) -> Iterator[str]:
    """Name imports that go up or sideways, and packages without a floor."""
    heights = read_floors() if floors is None else floors
    for module, target in import_graph(modules).edges:
        if (module.is_face and target.name.startswith(f"{module.name}.")) or module.path == "api/__init__.py":
            continue
        if target.is_face and target.path in ("api/__init__.py",):
            continue  # the version alone
        here, there = find_floor(module.path, heights), find_floor(target.path, heights)
        for file, floor in ((module, here), (target, there)):
            if floor is None:
                yield f"{file.path} has no floor: name its package in tests/support/house.py"
        if here is not None and there is not None and here[0] != there[0] and there[1] >= here[1]:
            yield f"{module.path} imports {target.path}, which is not on a lower floor"


def main() -> int:
    """Print all faults; 1 if there are any."""
    modules = read_modules()
    faults = sorted({*find_oversized(modules), *find_circles(modules), *find_floor_faults(modules)})
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
