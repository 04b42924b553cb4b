"""What is prepared before any process is started, and the rows that are made of what the processes tell."""

import errno
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from places import USER_MODELS
from safetensors.torch import load_file
from torch import nn

from cutset.errors import BadInput, CutsetError, UsageError
from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.registry import parse_method
from cutset.ps.optimizers.schedule import TabulatedSchedule
from cutset.ps.optimizers.standard import SGD
from cutset.runtime.hosts.host import LocalHost
from cutset.runtime.worker.program import Program
from cutset.tools.config.run_config import RunConfig
from cutset.tools.hosts.run_hosts import RunHosts
from cutset.tools.job.dry_run import dry_run
from cutset.tools.job.initial_weights import state_names
from cutset.tools.job.job import Job
from cutset.tools.job.prepare import prepare
from cutset.tools.job.process_specs import WorkerSpec
from cutset.tools.run_listener import RunListener
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.task.plan_request import PlanRequest
from cutset.tools.task.plan_task import plan_task
from cutset.tools.training.supervisor import TrainingSupervisor

MODELS = USER_MODELS


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def options(tmp_path: Path) -> RunConfig:
    return RunConfig(task_named("task"), optimizer=SGD(0.1), out=tmp_path / "run", shards=1)


def task_named(name: str) -> str:
    return f"{MODELS / 'good.py'}:{name}"


def spec_of(name: str) -> TaskSpec:
    return TaskSpec(task_named(name))


# Options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"replicas": 0}, "E220"),
        ({"shards": -1}, "E220"),
        ({"epochs": 0}, "E220"),
        ({"replicas": 300}, "E221"),
        ({"target": 1.5}, "E225"),
        ({"target": float("nan")}, "E225"),
        ({"optimizer": SGD(1e39)}, "E226"),
        ({"machines": 0}, "E201"),
        ({"replicas": 50}, "E223"),
        ({"method": Downpour(warm_start=13), "replicas": 2, "epochs": 2}, "E261"),
    ],
)
def test_what_cannot_be_trained_is_refused(options: RunConfig, more: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError, match=code) as caught:
        prepare(replace(options, **more))
    assert caught.value.fix


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("more", "steps", "evaluate_every"),
    [
        ({}, 12, 12),
        ({"epochs": 3}, 36, 12),
        ({"epochs": 3, "replicas": 2}, 18, 6),
        ({"epochs": 1, "replicas": 5}, 2, 2),
        ({"batch": 40, "epochs": 3}, 7, 2),
    ],
)
def test_the_samples_of_all_epochs_are_shared_out_in_whole_batches(
    options: RunConfig, more: dict[str, Any], steps: int, evaluate_every: int
) -> None:
    training = prepare(replace(options, **more)).training
    assert (training.steps, training.evaluate_every) == (steps, evaluate_every)


@pytest.mark.parametrize(("lr", "rate"), [(None, 0.01), (0.3, 0.3)])
def test_a_task_scales_an_optimizers_own_rate_but_not_a_users(
    options: RunConfig, lr: float | None, rate: float
) -> None:
    job = prepare(replace(options, task=task_named("slow"), optimizer="adagrad", lr=lr))
    assert job.optimizer.lr == rate


@pytest.mark.parametrize(
    ("method", "steps", "versions"), [("sync", 1, 1), ("downpour:push=4", 4, 2), ("averaging:every=3", 3, 1)]
)
def test_checkpoints_by_time_are_written_where_replicas_have_just_pushed(
    options: RunConfig, method: str, steps: int, versions: int
) -> None:
    job = prepare(replace(options, method=parse_method(method), replicas=2, checkpoint_every="2min"))
    assert (job.training.checkpoint_every, job.training.checkpoint_s) == (steps, 120.0)
    assert job.checkpoint_versions == versions


def test_a_full_disk_is_told(options: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: memoryview, at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(UsageError, match=r"E222: cannot write .*initial\.safetensors: .*No space left") as caught:
        prepare(options)
    assert caught.value.fix
    assert not list(options.out.glob("initial*"))


# A cut model ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(options: RunConfig) -> Job:
    return prepare(replace(options, task=task_named("mixed"), machines=2, shards=3, seed=5))


def test_all_state_is_stored_from_the_seed(mixed: Job) -> None:
    model = load_task(mixed.training.task).build(seed=5)
    initial = load_file(mixed.training.initial)
    assert {"first.weight", "second.weight", "scale", "passing", "shift", "spare.bias"} <= set(initial)
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        assert torch.equal(initial[name], tensor), name


def test_the_rehearsal_leaves_running_statistics_as_they_were(mixed: Job) -> None:
    assert load_file(mixed.training.initial)["norm.num_batches_tracked"] == 0


def test_each_name_of_the_state_leads_to_the_tensor_of_the_run(mixed: Job) -> None:
    model = load_task(mixed.training.task).build(seed=0)
    assert list(mixed.names) == list(model.state_dict())
    assert mixed.names["second.weight"] == mixed.names["first.weight"] == "first.weight"
    assert "passing" not in mixed.names


def test_names_of_modules_that_are_there_twice() -> None:
    layer = nn.Linear(2, 2)
    assert state_names(nn.Sequential(layer, nn.ReLU(), layer)) == {
        "0.weight": "0.weight",
        "0.bias": "0.bias",
        "2.weight": "0.weight",
        "2.bias": "0.bias",
    }


def test_the_regions_are_every_trained_parameter_once(mixed: Job) -> None:
    model = load_task(mixed.training.task).build(seed=0)
    marks = {name: torch.zeros_like(p, dtype=torch.int) for name, p in model.named_parameters() if p.requires_grad}
    for regions, program in zip(mixed.regions, mixed.programs, strict=True):
        assert sum(torch.Size(region.sizes).numel() for region in regions) == program.elements
        for region in regions:
            marks[region.name].view(region.axes)[tuple(slice(a, b) for a, b in region.box)] += 1
    assert all(bool((mark == 1).all()) for mark in marks.values())


def test_the_shards_hold_every_element_once(mixed: Job) -> None:
    assert {piece.shard for piece in mixed.slices} == {0, 1, 2}
    for machine, program in enumerate(mixed.programs):
        mine = sorted((piece.start, piece.stop) for piece in mixed.slices if piece.machine == machine)
        assert [start for start, _ in mine] == [0, *(stop for _, stop in mine[:-1])]
        assert mine[-1][1] == program.elements


def test_the_roles_carry_their_programs_and_no_other(mixed: Job) -> None:
    job = replace(mixed, training=msgspec.structs.replace(mixed.training, replicas=2))
    hosts = RunHosts(job, [LocalHost()])
    supervisor = TrainingSupervisor(job, hosts, listener=RunListener(), on_notice=lambda _: None)
    roles = {role.name: role for role in supervisor.roles()}
    assert sorted(roles) == ["shard-0", "shard-1", "shard-2", *(f"worker-{r}.{m}" for r in (0, 1) for m in (0, 1))]
    setup = msgspec.convert(roles["worker-1.1"].setup, WorkerSpec)
    assert (setup.replica, setup.machine, setup.machines) == (1, 1, 2)
    assert msgspec.msgpack.decode(setup.programs[0], type=Program) == mixed.programs[1]
    assert {piece.machine for piece in setup.slices} == {1}


def test_a_placement_in_hand_is_taken_and_saved(options: RunConfig) -> None:
    spec = options.task_spec
    placement = plan_task(capture_task(spec), spec, PlanRequest(machines=2, candidates="slices")).placement
    job = prepare(replace(options, placement=placement))
    assert (job.machines, job.placement) == (2, placement)
    placement.save(options.out / "expected.json")
    assert (options.out / "placement.json").read_text() == (options.out / "expected.json").read_text()


# An uncut model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "said"), [("gated", "if x.sum() > 0"), ("looks", ".numpy() is not supported")])
def test_a_model_that_cannot_be_traced_is_trained_uncut(options: RunConfig, name: str, said: str) -> None:
    job = prepare(replace(options, task=task_named(name), shards=2))
    assert (job.placement, list(job.programs), job.machines) == (None, [], 1)
    assert job.notes[0].startswith("it is trained uncut, data parallel only: ")
    assert said in job.notes[0]
    model = load_task(job.training.task).build(seed=0)
    assert [region.name for region in job.regions[0]] == [name for name, _ in model.named_parameters()]
    assert job.regions[0][-1].stop == job.slices[-1].stop == sum(p.numel() for p in model.parameters())
    assert not (options.out / "placement.json").exists()


def test_over_several_machines_what_cannot_be_traced_is_an_island(options: RunConfig) -> None:
    job = prepare(replace(options, task=task_named("gated"), machines=2))
    assert any(note.startswith("computed whole, as an island that is not cut: ") for note in job.notes)


def test_a_placement_of_another_model_is_refused_where_the_model_cannot_be_traced(options: RunConfig) -> None:
    placement = plan_task(capture_task(options.task_spec), options.task_spec, PlanRequest(machines=1)).placement
    with pytest.raises(BadInput, match="E340"):
        prepare(replace(options, task=task_named("gated"), placement=placement))


# The rehearsal -------------------------------------------------------------------------------------------------------


def test_a_rehearsal_counts_the_samples_and_leaves_random_numbers_alone() -> None:
    task = load_task(spec_of("mixed"))
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    assert dry_run(task, task.build(seed=0), task.example(8)).samples == 96
    assert torch.equal(torch.rand(2), expected)


def test_a_batch_larger_than_the_data_is_rehearsed_with_repetitions() -> None:
    task = load_task(spec_of("task"))
    assert dry_run(task, task.build(seed=0), task.example(200)).samples == 96


@pytest.mark.parametrize(
    ("name", "code"),
    [("wide_samples", "E313"), ("labels_out_of_range", "E314"), ("no_score", "E315"), ("without_parameters", "E316")],
)
def test_a_rehearsal_that_fails(name: str, code: str) -> None:
    task = load_task(TaskSpec(f"{MODELS / 'wrong.py'}:{name}"))
    with pytest.raises(CutsetError, match=code):
        dry_run(task, task.build(seed=0), task.example(8))


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("loss_without_gradient", {"uncut": True}),
        ("loss_without_gradient_by_chance", {"uncut": True}),
        ("loss_without_gradient_by_chance", {"has_leaf_modules": True}),
    ],
)
def test_a_rehearsal_finds_a_loss_without_a_gradient_that_no_trace_has_shown(name: str, seen: dict[str, bool]) -> None:
    task = load_task(TaskSpec(f"{MODELS / 'wrong.py'}:{name}"))
    with pytest.raises(CutsetError, match="E322: the loss has no gradient"):
        dry_run(task, task.build(seed=0), task.example(8), **seen)


# Tables --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def samples(tmp_path: Path) -> str:
    """40 sparse samples, as --data."""
    path = tmp_path / "samples"
    path.write_text("\n".join(f"{number % 2} {1 + number % 7}:1 {9 + number % 5}:1" for number in range(40)))
    return f"libsvm:{path}"


def test_of_a_table_the_rows_travel_that_a_step_touches(options: RunConfig, samples: str) -> None:
    job = prepare(replace(options, task="cutset.models:logistic(bias=True)", data=samples, batch=8))
    assert job.placement is None
    *rows, bias = job.slices
    assert [(piece.width, piece.start, piece.stop) for piece in rows] == [(1, 0, 14)]
    assert (bias.width, bias.start, bias.stop) == (0, 14, 15)
    assert [(table.start, table.stop, table.width) for table in job.training.tables] == [(0, 14, 1)]
    assert job.notes == ["of weight.weight the rows travel that a step touches; the model is not cut for that"]


@pytest.mark.run
def test_a_table_that_is_cut_travels_dense_and_that_is_said(options: RunConfig, samples: str) -> None:
    job = prepare(replace(options, task="cutset.models:logistic", data=samples, batch=8, machines=2))
    assert job.placement is not None
    assert job.training.tables == []
    assert not any(piece.width for piece in job.slices)
    assert [note for note in job.notes if "sparse gradients travel dense" in note]


def test_models_without_sparse_gradients_are_as_they_were(options: RunConfig) -> None:
    job = prepare(options)
    assert job.placement is not None
    assert not any(piece.width for piece in job.slices)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(("method", "updates"), [("downpour", 24), ("sync", 12), ("averaging:every=3", 12)])
def test_a_table_of_rates_for_another_number_of_updates_is_told(
    options: RunConfig, method: str, updates: int, tmp_path: Path
) -> None:
    """Replicas of averaging make the updates, each 12 of them."""
    for points in (updates, 1000):
        schedule = TabulatedSchedule.of(lambda step: 0.99**step, points)
        more = {"method": method, "lr_schedule": schedule, "replicas": 2, "epochs": 2, "out": tmp_path / str(points)}
        notes = prepare(replace(options, **more)).notes
        told = [note for note in notes if "points" in note]
        words = f"the schedule has 1,000 points, the run {updates} updates: the points are spread evenly over these"
        assert told == ([words] if points == 1000 else [])
