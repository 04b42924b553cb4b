"""Captures of tasks: leaf modules, and what is offered where a model cannot be traced."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from marking import with_slow
from places import USER_MODELS
from torch import Tensor, nn

from cutset.models.task import Data, Task
from cutset.partition.capture import export
from cutset.partition.capture.tracing_error import Untraceable
from cutset.partition.capture.tried_step import TriedStep
from cutset.partition.operators.island import ISLAND
from cutset.partition.operators.leaf_module import LEAF_MODULE
from cutset.partition.repeats.layer_chains import LayerChain
from cutset.tools.task.capture_task import CapturedTask, capture_task
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.task.meta_model import build_without_weights

BRANCHING = USER_MODELS / "branching.py"


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


def of(name: str, *blocks: str) -> CapturedTask:
    return capture_task(TaskSpec(f"{BRANCHING}:{name}", leaf_modules=blocks))


def names(ready: CapturedTask) -> list[str]:
    return [op.arguments["name"] for op in ready.train.ops if op.target == LEAF_MODULE]


# The way out ---------------------------------------------------------------------------------------------------------


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("name", "line", "module", "offered"),
    with_slow(
        [
            ("branching", "if x.mean() > 0.05", "layers.0.1 (Gate)", ["layers.*.1"]),
            ("gate", "if x.mean() > 0.05", "1 (Gate)", ["1"]),
            ("signs", "Sign.backward at branching.py:", "", ["1"]),
            ("assigns", "assigns its buffer 1.mean", "", ["1"]),
            ("by_numpy", "x.detach().numpy().any()", "1 (ByNumpy)", ["1"]),
        ],
        [
            ("hooked", "hooks a gradient at branching.py:", "", ["1"]),
            ("gates", "if x.mean() > 0.05", "1 (Gate)", ["1", "2"]),
            ("real_only", "self.order.tolist()", "1 (RealOnly)", ["1"]),
            ("several", "if x.mean() > 0.05", "3 (Gate)", ["3", "5", "7", "1", "6", "2"]),
        ],
    ),
)
def test_leaf_modules_are_found(name: str, line: str, module: str, offered: list[str]) -> None:
    """The innermost module that holds the line, as long as it can be a leaf; and of all that cannot be traced."""
    ready = of(name)
    assert sorted(ready.leaf_modules) == sorted(offered)
    (note,) = [note for note in ready.notes if note.startswith("computed whole, as an island")]
    if name != "several":
        assert line in note
        assert module in note
    assert len(names(ready)) >= len(offered)


def test_leaf_modules_that_are_named_already_stay() -> None:
    assert of("gates", "2").leaf_modules == ("2", "1")


def test_a_model_that_branches_by_itself_is_one_island() -> None:
    ready = of("root")
    assert ready.leaf_modules == ("(model)",)
    assert names(ready) == ["(model)"]


def test_rows_as_many_as_data_says_are_an_island_up_to_the_loss() -> None:
    ready = of("picked")
    assert ready.leaf_modules == ()
    assert [op.target for op in ready.train.ops].count(ISLAND) == 1


def test_without_a_search_the_innermost_module_is_offered_untried() -> None:
    spec = TaskSpec(f"{BRANCHING}:gate")
    with pytest.raises(Untraceable, match=r"fix: --leaf-modules '1', whose inside"):
        capture_task(spec, search=False)


# Blocks --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_task_names_leaf_modules_of_its_own() -> None:
    ready = of("with_blocks")
    assert (ready.leaf_modules, names(ready)) == (("layers.*.1",), ["layers.0.1", "layers.1.1"])
    more = of("with_blocks", "last", "layers.*.1")
    assert (more.leaf_modules, names(more)) == (("layers.*.1", "last"), ["layers.0.1", "layers.1.1", "last"])
    assert [op.arguments["name"] for op in more.evaluation.ops if op.target == LEAF_MODULE] == names(more)


@pytest.mark.slow
def test_leaf_modules_that_change_nothing_are_noted() -> None:
    assert of("with_blocks").notes == ()
    assert of("with_blocks", "layers.0").notes == ()  # layers.1.1 is still one
    (note,) = of("branching", "layers.*", "layers.1.1").notes
    assert note == "--leaf-modules 'layers.1.1' changes nothing: layers.1.1 is part of leaf module layers.1"
    (note,) = of("picked", "1", "1.mix").notes
    assert "1.mix is part of leaf module 1" in note


def test_a_leaf_module_whose_buffers_need_their_values_is_tried_on_the_real_model() -> None:
    assert names(of("real_only", "1")) == ["1"]


class KeepsInEvaluation(nn.Module):
    """Adds in evaluation what it got in the step before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(4, 4), torch.zeros(1, 4)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            x, self.last = x + self.last, x
        return self.linear(x)  # type: ignore[no-any-return]


class Indexing(nn.Module):
    """Looks at a table of its own, and fails with another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("order", torch.tensor([2, 0, 3, 1]))

    def forward(self, x: Tensor) -> Tensor:
        order: list[int] = self.order.tolist()  # type: ignore[operator, assignment]
        return self.linear(x)[:, [order.index(i) for i in range(4)]]  # type: ignore[no-any-return]


def task_of(module: Callable[[], nn.Module], built: list[str] | None = None) -> Task:
    """Return a task with such a module. built: gets the device of its parameters whenever the model is built."""

    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), module(), nn.Linear(4, 4))
        if built is not None:
            built.append(model[0].weight.device.type)  # type: ignore[union-attr, arg-type]
        return model

    example = Data((torch.randn(8, 4),), (torch.randn(8, 4),))
    return Task("net", build, F.mse_loss, lambda batch: example.rows(torch.arange(batch) % 8), batch=8)


def test_nothing_is_traced_before_both_steps_are_known_to_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, trace = list[bool](), export._trace

    def count(tried: TriedStep, chains: Sequence[LayerChain], *, after_others: bool) -> Any:
        traced.append(tried.request.loss is not None)
        return trace(tried, chains, after_others=after_others)

    monkeypatch.setattr(export, "_trace", count)
    ready = capture_task(TaskSpec("net"), task_of(KeepsInEvaluation))
    assert names(ready) == ["1"]
    assert traced == [True, False]  # by the second attempt alone


LAST = [True]  # whether the last step was one of training


class KeepsOutside(nn.Module):
    """Does something else in the first step of training, and in the first of evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        is_first, LAST[0] = LAST[0] is not self.training, self.training
        return self.linear(x) * 3 if is_first else self.linear(x)  # type: ignore[no-any-return]


def test_the_steps_that_are_traced_are_those_after_the_first_of_their_kind() -> None:
    ready = capture_task(TaskSpec("net", trust_trace=True), task_of(KeepsOutside))
    for graph in (ready.train, ready.evaluation):
        assert not [op for op in graph.ops if op.target.startswith("aten.mul")]


def test_a_model_with_weights_is_built_once_for_both_steps() -> None:
    built = list[str]()
    trusting = TaskSpec("net", leaf_modules=("1",), trust_trace=True)
    assert names(capture_task(trusting, task_of(Indexing, built))) == ["1"]
    assert built.count("cpu") == 1


def test_a_model_is_built_for_real_only_where_it_keeps_plain_tensors() -> None:
    model = build_without_weights(load_task(TaskSpec(f"{BRANCHING}:gates")))
    assert all(p.is_meta for p in model.parameters())
    lstm = build_without_weights(load_task(TaskSpec(f"{BRANCHING}:recurrent")))
    assert all(p.is_meta for p in lstm.parameters())  # it lists its weights once more
    plain = build_without_weights(load_task(TaskSpec(f"{BRANCHING}:keeps_plain")))
    assert not any(p.is_meta for p in plain.parameters())
