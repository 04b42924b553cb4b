"""Real processes from the command line to the files of a run, against plain torch."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from marking import with_slow
from places import USER_MODELS
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cutset.models.sample_stream import SampleStream
from cutset.models.task import Task
from cutset.models.tasks.locally_connected import LocallyConnected2d
from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.graph import Graph
from cutset.partition.placement.from_plan import plan_placement
from cutset.partition.placement.placement_file import Placement, load
from cutset.partition.placement.to_cut import cut_from_placement
from cutset.ps.checkpoint import read_checkpoint as checkpoint
from cutset.runtime.hosts.host import Role
from cutset.runtime.launcher.launcher import Launcher
from cutset.runtime.worker.dropout_masks import mask_seed
from cutset.runtime.worker.program import programs
from cutset.tools.commands.cli import cli
from cutset.tools.task.load_task import TaskSpec, load_task

HERE = Path(__file__).parent
GOOD = USER_MODELS / "good.py"
CUTSET = Path(sys.executable).with_name("cutset")

USER_TASK = """
    import torch
    from torch import nn
    from cutset import Data, Task


    def example(batch):
        return Data((torch.zeros(batch, 2),), (torch.zeros(batch, dtype=torch.int64),))


    def rings(split):
        generator = torch.Generator().manual_seed(len(split))
        points = torch.randn(400 if split == "train" else 145, 2, generator=generator)
        return Data((points,), ((points.norm(dim=1) > 1.18).long(),))


    def task():
        model = lambda: nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))
        return Task("rings", model, nn.functional.cross_entropy, example, rings, batch=10)
"""


def cutset(*arguments: object, **more: Any) -> str:
    """What the console script prints, if it ends well."""
    command = [str(CUTSET), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def here(*arguments: object) -> None:
    """The same in this process, which is quicker."""
    cli.main([str(argument) for argument in arguments], standalone_mode=False)


def evaluated(task: Task, weights: dict[str, Tensor]) -> float:
    """The share of right answers of a model that plain torch loads the weights into."""
    assert task.data is not None
    model, test = task.build(seed=99), task.data("test")
    model.load_state_dict(weights, strict=True)
    model.eval()
    with torch.no_grad():
        return task.correct(model(*test.inputs), *test.targets) / len(test)


def trained(task: Task, *, lr: float, epochs: int, seed: int) -> nn.Module:
    """Plain torch: one process, SGD, the batches of the stream, random numbers of replica 0."""
    assert task.data is not None
    model, data = task.build(seed=seed).train(), task.data("train")
    stream = SampleStream(len(data), batch=task.batch, seed=seed)
    optimiser = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr)
    for step in range(stream.steps(epochs)):
        batch = data.rows(stream.indices(step))
        torch.manual_seed(mask_seed(seed, step, 0))
        optimiser.zero_grad()
        task.loss(model(*batch.inputs), *batch.targets).backward()
        optimiser.step()
    return model


@pytest.fixture
def good() -> Iterator[Callable[[str], Task]]:
    """Tasks of the user_models, loaded as the command loads them."""
    path = sys.path[:]
    yield lambda name: load_task(TaskSpec(f"{GOOD}:{name}"))
    sys.path[:] = path


# A user's task, two machines x two replicas, two shards --------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, what it printed, and the name of its task."""

    out: Path
    printed: dict[str, Any]
    task: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    (folder / "mine.py").write_text(textwrap.dedent(USER_TASK))
    options = ["--machines", 2, "--replicas", 2, "--shards", 2, "--optimizer", "adagrad", "--lr", 0.1, "--epochs", 15]
    printed = cutset("train", "mine.py:task", *options, "--target", 0.9, "--out", "run", "--json", cwd=folder)
    return Run(folder / "run", json.loads(printed), f"{folder / 'mine.py'}:task")


def test_the_result_compares_one_process_and_downpour(run: Run) -> None:
    one, many = run.printed["rows"]
    assert (one["name"], one["processes"]) == ("one process", 1)
    assert (many["name"], many["processes"]) == ("downpour, 2 machines x 2 replicas, 2 shards", 6)
    assert one["samples"] == many["samples"] == 15 * 400
    for row in (one, many):
        assert row["test_accuracy"] > 0.9
        assert row["curve"][-1]["samples"] == row["samples"]
        assert row["time_to_target_s"] is not None
    assert one["losses"][-1][0] == one["samples"]
    assert 0.9 * many["samples"] < many["losses"][-1][0] <= many["samples"]  # the other replica may take the last
    assert many["bytes_per_step"] > 0
    assert 0 <= many["staleness_mean"] <= many["staleness_max"]


def test_all_processes_said_how_their_work_goes(run: Run) -> None:
    lines = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    assert (lines[0]["event"], lines[-1]["event"], lines[-1]["why"]) == ("begin", "end", None)
    assert (lines[0]["machines"], lines[0]["replicas"], lines[0]["shards"]) == (2, 2, 2)
    told = [line for line in lines if line["event"] == "roles" and line["roles"]]
    last = told[-1]
    assert last["run"] == "downpour"
    assert all(set(line["roles"]) == {"one-process"} for line in told if line["run"] == "one process")
    workers = {f"worker-{replica}.{machine}" for replica in (0, 1) for machine in (0, 1)}
    assert set(last["roles"]) <= {*workers, "shard-0", "shard-1"}
    assert all(role["cpu_s"] > 0 and role["rss"] > 1 << 20 for role in last["roles"].values())


def test_pushes_and_links_of_every_worker_are_counted(run: Run) -> None:
    workers = {f"worker-{replica}.{machine}" for replica in (0, 1) for machine in (0, 1)}
    late = run.printed["staleness"]
    assert set(late) <= workers
    slices = json.loads((run.out / "checkpoint" / "manifest.json").read_text())["slices"]
    steps = run.printed["settings"]["steps per replica"]
    for machine in (0, 1):
        held = sum(piece["machine"] == machine for piece in slices)
        pushes = [sum(late.get(f"worker-{replica}.{machine}", {}).values()) for replica in (0, 1)]
        assert sum(pushes) == 2 * steps * held  # who is faster takes more batches
        assert min(pushes) > 0
    links = {(link["source"], link["target"]) for link in run.printed["links"]}
    assert {("worker-1.0", "worker-1.1"), ("worker-1.1", "worker-1.0")} & links
    assert not [pair for pair in links if pair[0][:8] == "worker-0" and pair[1][:8] == "worker-1"]
    assert all(name in workers | {"shard-0", "shard-1"} for pair in links for name in pair)


def test_the_run_folder_holds_what_it_should(run: Run) -> None:
    assert json.loads((run.out / "result.json").read_text()) == run.printed
    assert (run.out / "report.html").read_text().startswith("<!doctype html>")
    assert load(run.out / "placement.json").model == "mine.py:task"
    names = {"one-process", "shard-0", "shard-1", *(f"worker-{r}.{m}" for r in (0, 1) for m in (0, 1))}
    assert {path.stem for path in (run.out / "logs").iterdir()} == names
    assert [path.read_text() for path in (run.out / "logs").iterdir()] == [""] * len(names)


def test_plain_torch_loads_the_weights_and_finds_the_accuracy_that_is_reported(run: Run) -> None:
    share = evaluated(load_task(TaskSpec(run.task)), load_file(run.out / "model.safetensors"))
    assert share == run.printed["rows"][-1]["test_accuracy"]


def test_the_checkpoint_is_whole_and_has_the_same_weights(run: Run) -> None:
    found = checkpoint.open_checkpoint(run.out / "checkpoint")
    assert [file.shard for file in found.manifest.files] == [0, 1]
    assert {found.read_optimizer(shard).lr for shard in (0, 1)} == {0.1}
    weights = load_file(run.out / "model.safetensors")
    torch.testing.assert_close(checkpoint.load_checkpoint(run.out / "checkpoint"), weights, rtol=0, atol=0)


# One replica equals plain torch --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["false", "true"])
def test_one_replica_of_a_cut_model_equals_plain_sgd(good: Callable[[str], Task], tmp_path: Path, overlap: str) -> None:
    """n_fetch = n_push = 1, 60 steps in float64."""
    options = ["--machines", 2, "--optimizer", "sgd", "--lr", 0.1, "--epochs", 5, "--seed", 3, "--no-baseline"]
    options += ["--method", f"downpour:overlap={overlap}"]
    cutset("train", f"{GOOD}:exact", *options, "--shards", 2, "--out", tmp_path)
    expected = trained(good("exact"), lr=0.1, epochs=5, seed=3).state_dict()
    torch.testing.assert_close(load_file(tmp_path / "model.safetensors"), dict(expected), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_what_the_shards_do_not_hold_is_exported_too(good: Callable[[str], Task], tmp_path: Path) -> None:
    """Running statistics, dropout, and frozen, tied and unused tensors of a cut model, as plain torch leaves them."""
    options = ["--machines", 2, "--optimizer", "sgd", "--lr", 0.1, "--epochs", 4, "--seed", 3]
    options += ["--no-baseline", "--json"]
    printed = json.loads(cutset("train", f"{GOOD}:mixed", *options, "--out", tmp_path))
    weights, task = load_file(tmp_path / "model.safetensors"), good("mixed")
    expected = trained(task, lr=0.1, epochs=4, seed=3).state_dict()
    assert weights["norm.num_batches_tracked"] == 48
    torch.testing.assert_close(weights, dict(expected), rtol=0, atol=1e-10)
    assert evaluated(task, weights) == printed["rows"][0]["test_accuracy"]


# Placements ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_placement_file_is_followed(tmp_path: Path) -> None:
    file, out = tmp_path / "cut.json", tmp_path / "run"
    here("plan", f"{GOOD}:task", "--machines", 2, "--candidates", "slices", "-o", file)
    printed = json.loads(cutset("train", f"{GOOD}:task", "--placement", file, "--no-baseline", "--json", "--out", out))
    assert (out / "placement.json").read_bytes() == file.read_bytes()
    assert (printed["settings"]["machines"], printed["settings"]["placement"]) == (2, "slices")
    links = {(link["source"], link["target"]) for link in printed["links"]}
    assert {("worker-0.0", "worker-0.1"), ("worker-0.1", "worker-0.0")} <= links


@pytest.mark.slow
def test_a_plan_is_the_same_byte_for_byte_in_every_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"{seed}.json" for seed in (1, 2)]
    for seed, file in zip((1, 2), files, strict=True):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        cutset("plan", "cutset.models:digits_local", "--machines", 4, "-o", file, env=environment)
    assert files[0].read_bytes() == files[1].read_bytes()
    here("check", files[0])
    assert capsys.readouterr().out.endswith(f"{files[0]} fits cutset.models:digits_local: 4 machines\n")
    placement = load(files[0])
    slices = next(score for score in placement.candidates if score.name == "slices")
    assert placement.predicted.bytes_forward <= slices.bytes_forward


# A model that cannot be traced ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_cannot_be_traced_is_trained_data_parallel(good: Callable[[str], Task], tmp_path: Path) -> None:
    options = ["--machines", 1, "--replicas", 2, "--shards", 2, "--lr", 0.1, "--epochs", 4, "--no-baseline"]
    printed = json.loads(cutset("train", f"{GOOD}:gated", *options, "--json", "--out", tmp_path))
    (row,) = printed["rows"]
    assert row["name"] == "downpour, 1 machine x 2 replicas, 2 shards"
    assert row["test_accuracy"] > 0.7
    assert "trained uncut, data parallel only" in printed["notes"][0]
    assert "if x.sum() > 0" in printed["notes"][0]
    assert evaluated(good("gated"), load_file(tmp_path / "model.safetensors")) == row["test_accuracy"]
    assert not (tmp_path / "placement.json").exists()
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


# Transparency: one step of a cut model in real processes -------------------------------------------------------------


class Attention(nn.Module):
    """A small transformer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=True)
        self.last = nn.Linear(16, 20)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.last(self.layer(self.embedding(x)))
        return hidden.transpose(1, 2)


@dataclass(frozen=True)
class Case:
    """A model, its loss, and a batch."""

    model: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    loss: Callable[..., Tensor] = nn.functional.cross_entropy

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return self.model()


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 5)
    )


def local() -> nn.Module:
    return nn.Sequential(
        LocallyConnected2d(1, 4, size=(8, 8), kernel=3),
        nn.Tanh(),
        LocallyConnected2d(4, 4, size=(6, 6), kernel=3),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 5))


def cases() -> dict[str, Case]:
    generator = torch.Generator().manual_seed(0)
    rows, images = torch.randn(6, 64, generator=generator), torch.randn(6, 1, 12, 12, generator=generator)
    words, labels = torch.randint(20, (3, 7), generator=generator), torch.randint(5, (6,), generator=generator)
    return {
        "mlp": Case(mlp, (rows,), (labels,)),
        "conv": Case(conv, (images,), (labels,)),
        "local": Case(local, (rows.reshape(6, 1, 8, 8),), (labels,)),
        "transformer": Case(Attention, (words,), (words.flip(1),)),
    }


SEED, STEP, MACHINES = 5, 11, 2


def planned(graph: Graph) -> Placement:
    """The plan by METIS in which most crosses, so that there is something to get wrong."""
    return plan_placement(graph, uniform_cluster(MACHINES), model="case", candidates="metis units")


def one_step(case: Case, folder: Path) -> tuple[float, dict[str, Tensor]]:
    """Loss and whole gradients of a step by two worker processes."""
    model = case.build()
    graph, constants = capture(model, case.loss, case.inputs, case.targets)
    made = programs(lower_cut(graph, cut_from_placement(planned(graph), graph)), training=True)
    tensors = {name: value.clone() for name, value in collect_state(model, case.loss, constants).items()}
    batch = {f"{kind}.{i}": t for kind in ("inputs", "targets") for i, t in enumerate(getattr(case, kind))}
    save_file({**tensors, **batch}, folder / "step.safetensors")
    setup = {
        "file": str(folder / "step.safetensors"),
        "inputs": [name for name in batch if name.startswith("inputs")],
        "targets": [name for name in batch if name.startswith("targets")],
        "peers": [f"worker-0.{machine}" for machine in range(MACHINES)],
        "seed": SEED,
        "step": STEP,
    }
    roles = [
        Role(name, "one_step_role:step", {**setup, "program": msgspec.msgpack.encode(program)})
        for name, program in zip(setup["peers"], made, strict=True)
    ]
    gradients: dict[str, Tensor] = {}
    with Launcher(roles, job="transparency", folder=folder) as launcher:
        launcher.start()
        for message in launcher.events():
            if message.kind == "gradients":
                for (name, box), tensor in zip(message.body["boxes"], message.tensors, strict=True):
                    info = graph.tensors[name]
                    whole = gradients.setdefault(name, torch.full(info.shape, torch.nan))
                    whole.view(info.extents)[tuple(slice(a, b) for a, b in box)] = tensor
        (loss,) = [value for value in launcher.results.values() if value is not None]
    return loss, gradients


@pytest.mark.parametrize("name", with_slow(["mlp"], ["transformer", "conv", "local"]))
def test_a_step_of_a_cut_model_equals_plain_torch(name: str, tmp_path: Path) -> None:
    case = cases()[name]
    loss, gradients = one_step(case, tmp_path)
    model = case.build()
    torch.manual_seed(mask_seed(SEED, STEP, 0))
    expected = case.loss(model(*case.inputs), *case.targets)
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    wanted = {name: parameter.grad for name, parameter in model.named_parameters()}
    # Of a gradient that is zero but for rounding, the bias of the keys, only its smallness can be compared.
    top = max(float(grad.abs().max()) for grad in wanted.values() if grad is not None)
    torch.testing.assert_close(gradients, wanted, rtol=1e-5, atol=1e-6 * top)
