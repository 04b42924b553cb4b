"""What is prepared before any process is started, and the rows that are made of what the processes tell."""

import errno
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from cutset.errors import BadInput, CutsetError, UsageError
from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import SGD
from cutset.runtime.worker.program import Program
from cutset.tools.job.run_config import WorkerSetup
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.task.plan_task import Wanted, captured, planned
from cutset.tools.job.prepare import Options, Prepared, prepare, state_names
from cutset.tools.job.dry_run import rehearse
from cutset.tools.training.supervisor import Supervisor

MODELS = Path(__file__).parent / "user_models"


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(spec_of("task"), Downpour(), SGD(0.1), tmp_path / "run")


def spec_of(name: str, **more: Any) -> TaskSpec:
    return TaskSpec(f"{MODELS / 'good.py'}:{name}", **more)


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
        ({"rule": SGD(1e39)}, "E226"),
        ({"wanted": Wanted(machines=0)}, "E201"),
        ({"replicas": 50}, "E223"),
        ({"method": Downpour(warm_start=13), "replicas": 2, "epochs": 2}, "E261"),
    ],
)
def test_what_cannot_be_trained_is_refused(options: Options, more: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError, match=code) as caught:
        prepare(replace(options, **more))
    assert caught.value.fix


@pytest.mark.parametrize(
    ("more", "steps", "evaluate_every"),
    [
        ({}, 12, 12),
        ({"epochs": 3}, 36, 12),
        ({"epochs": 3, "replicas": 2}, 18, 6),
        ({"epochs": 1, "replicas": 5}, 2, 2),
        ({"spec": spec_of("task", batch=40), "epochs": 3}, 7, 2),
    ],
)
def test_the_samples_of_all_epochs_are_shared_out_in_whole_batches(
    options: Options, more: dict[str, Any], steps: int, evaluate_every: int
) -> None:
    course = prepare(replace(options, **more)).course
    assert (course.steps, course.evaluate_every) == (steps, evaluate_every)


def test_a_full_disk_is_told(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: memoryview, at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(UsageError, match=r"E222: cannot write .*initial\.safetensors: .*No space left") as caught:
        prepare(options)
    assert caught.value.fix
    assert not list(options.out.glob("initial*"))


# A cut model ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(options: Options) -> Prepared:
    return prepare(replace(options, spec=spec_of("mixed"), wanted=Wanted(machines=2), shards=3, seed=5))


def test_all_state_is_stored_from_the_seed(mixed: Prepared) -> None:
    model = load_task(mixed.options.spec).build(seed=5)
    initial = load_file(mixed.course.initial)
    assert {"first.weight", "second.weight", "scale", "passing", "shift", "spare.bias"} <= set(initial)
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        assert torch.equal(initial[name], tensor), name


def test_the_rehearsal_leaves_running_statistics_as_they_were(mixed: Prepared) -> None:
    assert load_file(mixed.course.initial)["norm.num_batches_tracked"] == 0


def test_each_name_of_the_state_leads_to_the_tensor_of_the_run(mixed: Prepared) -> None:
    model = load_task(mixed.options.spec).build(seed=0)
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


def test_the_regions_are_every_trained_parameter_once(mixed: Prepared) -> None:
    model = load_task(mixed.options.spec).build(seed=0)
    marks = {name: torch.zeros_like(p, dtype=torch.int) for name, p in model.named_parameters() if p.requires_grad}
    for regions, program in zip(mixed.regions, mixed.programs, strict=True):
        assert sum(torch.Size(region.sizes).numel() for region in regions) == program.elements
        for region in regions:
            marks[region.name].view(region.axes)[tuple(slice(a, b) for a, b in region.box)] += 1
    assert all(bool((mark == 1).all()) for mark in marks.values())


def test_the_shards_hold_every_element_once(mixed: Prepared) -> None:
    assert {piece.shard for piece in mixed.slices} == {0, 1, 2}
    for machine, program in enumerate(mixed.programs):
        mine = sorted((piece.start, piece.stop) for piece in mixed.slices if piece.machine == machine)
        assert [start for start, _ in mine] == [0, *(stop for _, stop in mine[:-1])]
        assert mine[-1][1] == program.elements


def test_the_roles_carry_their_programs_and_no_other(mixed: Prepared) -> None:
    job = replace(mixed, options=replace(mixed.options, replicas=2))
    supervisor = Supervisor(job, tell=lambda *_: None, note=lambda _: None)
    roles = {role.name: role for role in supervisor.roles()}
    assert sorted(roles) == ["shard-0", "shard-1", "shard-2", *(f"worker-{r}.{m}" for r in (0, 1) for m in (0, 1))]
    setup = msgspec.convert(roles["worker-1.1"].setup, WorkerSetup)
    assert (setup.replica, setup.machine, setup.machines) == (1, 1, 2)
    assert msgspec.msgpack.decode(setup.program, type=Program) == mixed.programs[1]
    assert {piece.machine for piece in setup.slices} == {1}


def test_a_placement_in_hand_is_taken_and_saved(options: Options) -> None:
    ready = captured(options.spec)
    placement = planned(ready, options.spec, Wanted(machines=2, only="slices"))
    job = prepare(replace(options, placement=placement))
    assert (job.machines, job.placement) == (2, placement)
    placement.save(options.out / "expected.json")
    assert (options.out / "placement.json").read_text() == (options.out / "expected.json").read_text()


# An uncut model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "said"), [("gated", "if x.sum() > 0"), ("looks", ".numpy() is not supported")])
def test_a_model_that_cannot_be_traced_is_trained_uncut(options: Options, name: str, said: str) -> None:
    job = prepare(replace(options, spec=spec_of(name), shards=2))
    assert (job.placement, list(job.programs), job.machines) == (None, [], 1)
    assert job.notes[0].startswith("it is trained uncut, data parallel only: ")
    assert said in job.notes[0]
    model = load_task(job.options.spec).build(seed=0)
    assert [region.name for region in job.regions[0]] == [name for name, _ in model.named_parameters()]
    assert job.regions[0][-1].stop == job.slices[-1].stop == sum(p.numel() for p in model.parameters())
    assert not (options.out / "placement.json").exists()


def test_it_is_not_where_several_machines_or_a_placement_are_asked_for(options: Options) -> None:
    placement = planned(captured(options.spec), options.spec, Wanted(machines=1))
    for more in ({"wanted": Wanted(machines=2)}, {"placement": placement}):
        with pytest.raises(BadInput, match="E320"):
            prepare(replace(options, spec=spec_of("gated"), **more))


# The rehearsal -------------------------------------------------------------------------------------------------------


def test_a_rehearsal_counts_the_samples_and_leaves_random_numbers_alone() -> None:
    task = load_task(spec_of("mixed"))
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    assert rehearse(task, task.build(seed=0), task.example(8)).samples == 96
    assert torch.equal(torch.rand(2), expected)


def test_a_batch_larger_than_the_data_is_rehearsed_with_repetitions() -> None:
    task = load_task(spec_of("task"))
    assert rehearse(task, task.build(seed=0), task.example(200)).samples == 96


@pytest.mark.parametrize(
    ("name", "code"),
    [("wide_samples", "E313"), ("labels_out_of_range", "E314"), ("regression", "E315"), ("without_parameters", "E316")],
)
def test_a_rehearsal_that_fails(name: str, code: str) -> None:
    task = load_task(TaskSpec(f"{MODELS / 'wrong.py'}:{name}"))
    with pytest.raises(CutsetError, match=code):
        rehearse(task, task.build(seed=0), task.example(8))


# Tables --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def samples(tmp_path: Path) -> str:
    """40 sparse samples, as --data."""
    path = tmp_path / "samples"
    path.write_text("\n".join(f"{number % 2} {1 + number % 7}:1 {9 + number % 5}:1" for number in range(40)))
    return f"libsvm:{path}"


def test_of_a_table_the_rows_travel_that_a_step_touches(options: Options, samples: str) -> None:
    spec = TaskSpec("cutset.models:logistic(bias=True)", samples, batch=8)
    job = prepare(replace(options, spec=spec))
    assert job.placement is None
    bias, *rows = job.slices
    assert (bias.width, bias.start, bias.stop) == (0, 0, 1)
    assert [(piece.width, piece.start, piece.stop) for piece in rows] == [(1, 1, 15)]
    assert [(table.start, table.stop, table.width) for table in job.course.tables] == [(1, 15, 1)]
    assert job.notes == ["of weight.weight the rows travel that a step touches; the model is not cut for that"]


def test_a_table_that_is_cut_travels_dense_and_that_is_said(options: Options, samples: str) -> None:
    spec = TaskSpec("cutset.models:logistic", samples, batch=8)
    job = prepare(replace(options, spec=spec, wanted=Wanted(machines=2)))
    assert job.placement is not None
    assert job.course.tables == []
    assert not any(piece.width for piece in job.slices)
    assert [note for note in job.notes if "sparse gradients travel dense" in note]


def test_models_without_sparse_gradients_are_as_they_were(options: Options) -> None:
    job = prepare(options)
    assert job.placement is not None
    assert not any(piece.width for piece in job.slices)
