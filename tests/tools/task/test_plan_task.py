"""From a task to graphs, a placement and programs."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from places import USER_MODELS
from torch import Tensor, nn

from cutset.errors import BadInput, Infeasible
from cutset.models.task import Data, Task, make_example_batches
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.placement.placement_file import to_json
from cutset.tools.samples.read_samples import read_samples
from cutset.tools.task.capture_task import CapturedTask, capture_task
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.task.plan_request import PlanRequest
from cutset.tools.task.plan_task import compile_other_sizes, compile_programs, load_cut, micro_batch_spec, plan_task

GOOD, BUCKETS = USER_MODELS / "good.py", f"{USER_MODELS / 'buckets.py'}:task"
MACHINES = 3


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


def spec(name: str, **more: object) -> TaskSpec:
    return TaskSpec(f"{GOOD}:{name}", **more)  # type: ignore[arg-type]


def of_model(model: type[nn.Module], width: int) -> CapturedTask:
    task = Task("own", model, nn.functional.cross_entropy, make_example_batches(((width,),), classes=3), batch=4)
    return capture_task(TaskSpec("own"), task)


def test_both_graphs_are_captured_at_the_batch_that_is_asked_for() -> None:
    for more, batch in (({}, 8), ({"batch": 5}, 5)):
        ready = capture_task(spec("task", **more))
        assert (ready.task.name, ready.batch) == ("clouds", batch)
        assert ready.train.tensors["input.0"].shape == ready.evaluation.tensors["input.0"].shape == (batch, 8)
        assert [op.sharding_rule for op in ready.train.ops][-1] == "aten.cross_entropy_loss"
        assert [op.sharding_rule for op in ready.evaluation.ops][-1] == "aten.alias"
        assert ready.constants == {}


def test_a_task_that_is_loaded_is_not_loaded_again() -> None:
    task = load_task(spec("task"))
    assert capture_task(TaskSpec("no_such_module:net"), task).task is task


def test_training_and_evaluation_may_compute_different_things() -> None:
    ready = capture_task(spec("mixed"))
    graphs = (ready.train, ready.evaluation)
    assert [any("shift" in op.inputs for op in graph.ops) for graph in graphs] == [False, True]


@pytest.mark.parametrize(
    ("model", "micro_batches", "expected"),
    [
        ("scored.py:centred", 2, ["sub (scored.py:"]),
        ("scored.py:centred", 1, []),
        ("scored.py:two_heads", 2, []),
    ],
)
def test_a_note_names_what_micro_batches_compare_apart(model: str, micro_batches: int, expected: list[str]) -> None:
    task = load_task(TaskSpec(f"{USER_MODELS}/{model}"))
    own = micro_batch_spec(TaskSpec(model), task, micro_batches)
    planned = plan_task(capture_task(own, task), own, PlanRequest(micro_batches=micro_batches, candidates="slices"))
    notes = [note for note in planned.notes if "compares the samples of a batch" in note]
    assert [note[: len(start)] for note, start in zip(notes, expected, strict=True)] == expected
    assert all(note.endswith("; with 2 micro-batches each compares its own 4 alone") for note in notes)


class FixedState(nn.Module):
    """Begins with a state for four samples, no more and no fewer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(1, 4, 3)
        return self.lstm(x[:, None], (state, state))[0][:, 0]


class Normed(nn.Module):
    """Cannot normalise one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 3), nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x))


@pytest.mark.run
def test_a_last_test_batch_that_the_model_does_not_take_is_filled_up_if_that_may_be_and_named_else() -> None:
    tests = Data((torch.zeros(5, 8),), (torch.zeros(5, dtype=torch.int64),))
    capture = of_model(FixedState, 8)
    others = compile_other_sizes(capture, TaskSpec("own"), one_machine_cut(capture.train), tests, training=False)
    assert others.evaluations == []
    assert [note.partition(": ")[0] for note in others.notes] == ["the last test batch, of 1 sample"]
    assert others.notes[0].endswith("; it is filled up with samples, whose rows are left out again")
    capture = of_model(Normed, 8)
    with pytest.raises(BadInput, match="the last test batch, of 1 sample: ") as error:
        compile_other_sizes(capture, TaskSpec("own"), one_machine_cut(capture.train), tests, training=False)
    assert error.value.fix == "test samples that batches of 4 divide"


class Enormous(nn.Module):
    """40 GB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(8, 10**9), nn.Linear(10**9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x))


def test_no_weight_is_allocated() -> None:
    ready = of_model(Enormous, 8)
    assert sum(p.element_bytes * p.shape[0] for p in ready.train.parameters) > 4e9


class Shifted(nn.Module):
    """Keeps a plain tensor, whose value the graph needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.shift = torch.arange(3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.shift


def test_plain_tensors_of_a_model_are_constants_with_values() -> None:
    ready = of_model(Shifted, 8)
    assert [value.tolist() for value in ready.constants.values()] == [[0.0, 1.0, 2.0]]


@pytest.mark.run
def test_a_plan_is_the_same_each_time_and_fits_its_model(tmp_path: Path) -> None:
    once, again = (
        plan_task(capture_task(spec("task")), spec("task"), PlanRequest(machines=2)).placement for _ in range(2)
    )
    assert to_json(once) == to_json(again)
    assert once.model == f"{GOOD}:task"
    assert load_cut(capture_task(spec("task")), once).machines == 2


def test_only_the_plans_of_one_kind_are_chosen_among() -> None:
    ready = capture_task(spec("task"))
    for kind in ("slices", "metis", "stages"):
        assert plan_task(ready, spec("task"), PlanRequest(machines=2, candidates=kind)).placement.winner.startswith(
            kind
        )


def test_a_model_without_parts_is_kept_whole() -> None:
    task = replace(load_task(spec("task")), leaf_modules=("(step)",))
    placement = plan_task(capture_task(spec("task"), task), spec("task"), PlanRequest(machines=3)).placement
    assert len(placement.machines) == 1
    facts = "No plan gives each of 3 machines a part of the model, so 2 of 3 machines are left out. One machine: "
    assert placement.verdict.startswith(facts)
    with pytest.raises(Infeasible, match="E403"):
        plan_task(capture_task(spec("task")), spec("task"), PlanRequest(machines=4000, candidates="metis"))


def test_a_placement_for_another_batch_is_refused() -> None:
    placement = plan_task(capture_task(spec("task")), spec("task"), PlanRequest(machines=2)).placement
    with pytest.raises(BadInput, match="batches of 8, the run has batches of 4") as caught:
        load_cut(capture_task(spec("task", batch=4)), placement)
    assert (caught.value.code, caught.value.fix) == ("E344", "--batch 8")


@pytest.mark.parametrize("longer", [False, True])
@pytest.mark.run
def test_each_split_is_read_once_for_all_lengths(longer: bool) -> None:
    """Planning looks at training data, and at tests only who evaluates; tests may have lengths of their own."""
    found = load_task(TaskSpec(BUCKETS))
    of_split, read = found.data, list[str]()
    assert of_split is not None

    def data(split: str) -> Any:
        read.append(split)
        loader = of_split(split)
        if longer and split == "test":
            loader.collate_fn.lengths.append(32)
        return loader

    task, spec = replace(found, data=data), TaskSpec(BUCKETS)
    capture = capture_task(spec, task)
    planned = plan_task(capture, spec, PlanRequest(machines=2))
    assert (read, planned.placement.lengths) == (["train"], [4, 8, 16])
    (note,) = planned.notes
    assert note == "planned for samples of length 16; those of 4, 8 are cut in the same proportions"
    assert plan_task(capture, spec, PlanRequest(machines=1)).notes == ()
    cut = load_cut(capture, planned.placement)
    others = compile_other_sizes(capture, spec, cut, read_samples(task, "test"))
    assert read == ["train", "test"]
    assert (len(others.programs), len(others.evaluations)) == (2, 3 if longer else 2)
    read.clear()
    for_tests = compile_other_sizes(capture, spec, cut, read_samples(task, "test"), training=False)
    assert (read, len(for_tests.programs), len(for_tests.evaluations)) == (["test"], 0, 3 if longer else 2)


@pytest.mark.run
def test_what_the_user_should_know_of_another_length_is_told() -> None:
    task = load_task(TaskSpec(BUCKETS))

    def model() -> nn.Module:
        whole = task.model()
        assert isinstance(whole, nn.Module)
        whole.register_forward_hook(lambda module, words, out: out * (float("nan") if out.shape[1] < 8 else 1.0))
        return whole

    capture = capture_task(TaskSpec(BUCKETS), replace(task, model=model))
    cut = load_cut(capture, plan_task(capture, TaskSpec(BUCKETS), PlanRequest(machines=2)).placement)
    others = compile_other_sizes(capture, TaskSpec(BUCKETS), cut, read_samples(capture.task, "test"))
    (note,) = others.notes
    assert note.startswith("batches of length 4: the plan's step was not compared with plain torch: not all of its")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["task", "mixed"])
def test_every_machine_gets_two_programs_over_the_same_state(name: str) -> None:
    ready = capture_task(spec(name))
    placement = plan_task(ready, spec(name), PlanRequest(machines=MACHINES)).placement
    trained, evaluated = compile_programs(ready, load_cut(ready, placement))
    assert [p.machine for p in trained] == [p.machine for p in evaluated] == list(range(MACHINES))
    assert all(p.training for p in trained)
    assert not any(p.training for p in evaluated)
    assert sum(p.elements for p in trained) == sum(
        torch.Size(parameter.shape).numel() for parameter in ready.train.parameters
    )
    # The loss and the output are on one machine, where right answers are counted.
    assert [bool(p.results) for p in trained] == [bool(p.results) for p in evaluated]
    assert sum(len(p.results) for p in trained) == sum(len(p.results) for p in evaluated) == 1
    for train, evaluation in zip(trained, evaluated, strict=True):
        where = [
            {(p.pieces[s.piece].tensor, p.pieces[s.piece].box) for s in p.states if s.offset >= 0}
            for p in (train, evaluation)
        ]
        assert where[1] <= where[0]
