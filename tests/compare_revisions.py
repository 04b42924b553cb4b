"""Does a revision plan and train exactly as another one does? Run by hand before and after a large move of the code.

    python tests/compare_revisions.py REVISION [--tasks NAME ...] [--machines 2 4 9] [--data KIND:PATH ...]

Both trees, REVISION from a clone of its own and this one as it stands, plan every bundled model for each number of
machines and train digits by `sync`, `averaging` and Sandblaster. Placement files must be equal byte for byte, and the
losses and final weights bit for bit, once keys that were renamed since REVISION (RENAMED) are replaced. Prints a line
for each comparison; fails if any differs. Takes some minutes.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("models", "partition", "runtime", "ps", "tools")
TASKS = (
    *("digits", "digits_local", "digits_softmax", "mnist", "mnist_conv", "mnist_softmax", "logistic", "word2vec"),
    *("alexnet", "resnet", "transformer", "local_net", "speech", "local_80m", "local_330m", "local_1700m"),
)
KIND_OF_DATA = {
    "mnist": "mnist",
    "mnist_conv": "mnist",
    "mnist_softmax": "mnist",
    "logistic": "libsvm",
    "word2vec": "text",
}
RUNS = {
    "sync": (
        "--replicas",
        "2",
        "--shards",
        "2",
        "--method",
        "sync",
        "{optimizer}",
        "sgd",
        "--lr",
        "0.1",
        "--epochs",
        "3",
    ),
    "averaging": (
        *("--machines", "2", "--replicas", "2", "--shards", "2", "--method", "averaging:every=5"),
        *("{optimizer}", "sgd", "--lr", "0.1", "--epochs", "3"),
    ),
    "sandblaster": ("--machines", "2", "--replicas", "2", "--shards", "2", "--method", "sandblaster:iterations=20"),
}
# Keys of placement files and graphs that were renamed, and words in the names of plans. Not compared are a sentence,
# whose words may differ, and the hash of the graph, which its keys are part of: the graphs themselves are.
RENAMED = {
    "least_share": "min_load",
    "memory_max_bytes": "peak_memory_bytes",
    "left_out": "rejected",
    "blocks": "leaf_modules",
    "joined": "non_additive",
    "noise": "random",
}
RENAMED_WORDS = {"polished": "local search"}
NOT_COMPARED = ("verdict", "graph", "cutset")
GRAPH = """
import sys, msgspec
try:
    from cutset.tools.task.load_task import TaskSpec
    from cutset.tools.task.capture_task import capture_task
except ImportError:
    from cutset.tools.load import TaskSpec
    from cutset.tools.planning import captured as capture_task
graph = capture_task(TaskSpec(sys.argv[1], *sys.argv[2:])).train
ops = [(op.name, op.target, op.arguments, op.outputs, op.nest) for op in graph.ops]
sys.stdout.buffer.write(msgspec.json.encode([ops, graph.tensors, graph.results], order="sorted"))
"""


class Tree:
    """One revision of the sources, run as a package of its own.

    The package is a folder of links, put before everything else on the path of the command and of its children.
    """

    def __init__(self, sources: Path, farm: Path) -> None:
        package = farm / "cutset"
        package.mkdir(parents=True)
        for folder in FOLDERS:
            (package / folder).symlink_to(sources / folder)
        for file in (sources / "api").iterdir():
            (package / file.name).symlink_to(file)
        self.farm = farm
        self._cli = "tools.commands.cli" if (sources / "tools/commands/cli.py").exists() else "tools.cli"
        self.optimizer_option = "--optimizer" if (sources / "tools/commands/cli.py").exists() else "--rule"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `cutset` with arguments."""
        code = f"from cutset.{self._cli} import main; main()"
        return self.run_python(code, *(a.format(optimizer=self.optimizer_option) for a in arguments))

    def run_python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run code with arguments."""
        environ = {**os.environ, "PYTHONPATH": str(self.farm), "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(
            command, env=environ, cwd=self.farm, capture_output=True, text=True, timeout=900, check=False
        )


def normalise_placement(text: str, *, is_old: bool) -> str:
    """Return the text of a placement file with what was renamed renamed, and fields left out that are not compared."""
    for old, new in RENAMED.items() if is_old else ():
        text = text.replace(f'"{old}":', f'"{new}":')
    for old, new in RENAMED_WORDS.items() if is_old else ():
        text = re.sub(rf'^( *"(?:winner|name)": ".*){old}', rf"\1{new}", text, flags=re.MULTILINE)
    for field in NOT_COMPARED:
        text = re.sub(rf'^( *"{field}": ).*?(,?)$', r"\1...\2", text, flags=re.MULTILINE)
    return text


def compare_graphs(old: Tree, new: Tree, task: str, data: tuple[str, ...]) -> str:
    """Capture with both trees; "" if operators, loop nests and tensors are equal, else that they are not."""
    texts = [tree.run_python(GRAPH, f"cutset.models:{task}", *data).stdout for tree in (old, new)]
    for word, renamed in RENAMED.items():
        texts[0] = re.sub(rf'(["@.]){word}"', rf'\1{renamed}"', texts[0])
    graphs = [json.loads(text) if text else None for text in texts]
    return "" if graphs[0] is not None and graphs[0] == graphs[1] else "the captured graphs differ"


def compare_plans(old: Tree, new: Tree, task: str, machines: int, data: tuple[str, ...], folder: Path) -> str:
    """Plan with both trees; "" if the files are equal, else what differs."""
    texts = []
    for tree, name in ((old, "old"), (new, "new")):
        file = folder / f"{name}-{task}-{machines}.json"
        given = ("--data", *data) if data else ()
        done = tree.run("plan", f"cutset.models:{task}", "--machines", str(machines), *given, "-o", str(file))
        if file.exists():
            texts.append(normalise_placement(file.read_text(encoding="utf-8"), is_old=name == "old"))
        else:
            texts.append(f"exit code {done.returncode}: {re.findall(r'E[0-9]{3}', done.stderr)}")
    if texts[0] == texts[1]:
        return ""
    lines = zip(texts[0].splitlines(), texts[1].splitlines(), strict=False)
    return next((f"{a.strip()!r} is now {b.strip()!r}" for a, b in lines if a != b), "one is longer")


def outcome_of(tree: Tree, name: str, folder: Path) -> dict[str, Any]:
    """Train digits; the losses that the result lists, by samples, and a hash of the trained weights."""
    out = folder / name
    done = tree.run("train", "cutset.models:digits", *RUNS[name], "--no-baseline", "--out", str(out))
    if done.returncode:
        return {"exit code": done.returncode, "stderr": done.stderr[-400:]}
    rows = json.loads((out / "result.json").read_text(encoding="utf-8"))["rows"]
    weights = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    return {"losses": dict(map(tuple, rows[-1]["losses"])), "weights": weights}


def compare_runs(old: Tree, new: Tree, name: str, folder: Path) -> str:
    """Train with both trees; "" if weights and losses agree, else what differs.

    Which steps of a run report their loss depends on the clock, so those are compared that both have.
    """
    one, other = outcome_of(old, name, folder / "old"), outcome_of(new, name, folder / "new")
    if "losses" not in one or "losses" not in other:
        return f"{one} and now {other}"
    common = one["losses"].keys() & other["losses"].keys()
    differing = [step for step in sorted(common) if one["losses"][step] != other["losses"][step]]
    if differing or not common:
        return f"the losses differ from sample {differing[0]} on" if differing else "no loss in common"
    return "" if one["weights"] == other["weights"] else "the weights differ"


def report(what: str, difference: str) -> bool:
    """Print whether something is equal; whether it is not."""
    sys.stdout.write(f"{what}: {difference or 'equal'}\n")
    sys.stdout.flush()
    return bool(difference)


def main() -> int:
    """Compare everything that is asked for; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--machines", nargs="*", type=int, default=[2, 4, 9])
    parser.add_argument("--data", nargs="*", default=[], metavar="KIND:PATH")
    asked = parser.parse_args()
    data = dict(item.split(":", 1) for item in asked.data)
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["git", "clone", "-q", "--no-checkout", str(ROOT), str(folder / "sources")], check=True)
        subprocess.run(["git", "checkout", "-q", asked.revision], cwd=folder / "sources", check=True)
        old, new = Tree(folder / "sources", folder / "old"), Tree(ROOT, folder / "new")
        for task in asked.tasks:
            kind = KIND_OF_DATA.get(task, "")
            given = (f"{kind}:{data[kind]}",) if kind in data else ()
            failures += report(f"graph of {task}", compare_graphs(old, new, task, given))
            for machines in asked.machines:
                difference = compare_plans(old, new, task, machines, given, folder)
                failures += report(f"plan of {task}, {machines} machines", difference)
        for run in RUNS:
            failures += report(f"losses and weights of {run}", compare_runs(old, new, run, folder / "runs"))
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
