"""A trace is compared with plain torch: what was lost in it is found, and what cannot be compared is not refused."""

import contextlib
import copy
import random
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cutset.errors import BadInput
from cutset.models.task import Data, Task
from cutset.partition.capture import traced_code, tried_step
from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Graph, freeze_parameters
from cutset.tools.commands.config_options import read_task_spec
from cutset.tools.config.run_config import RunConfig
from cutset.tools.task import trace_check
from cutset.tools.task.capture_task import CapturedTask, capture_task
from cutset.tools.task.in_process import plan_model
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.trace_check import check_trace

SPEC = TaskSpec("test")
TRUSTING = TaskSpec("test", trust_trace=True)


class Block(nn.Module):
    """A checkpointed layer with dropout and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda h: self.drop(self.norm(self.linear(h))), x, use_reentrant=True)  # type: ignore[no-any-return]


class Function(nn.Module):
    """A layer, a function of its output, and a layer whose weights begin as zeros."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 6), nn.Linear(6, 3), function
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))  # type: ignore[no-any-return]


def checkpointed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), Block(), nn.Linear(6, 3))


def task_of(model: Callable[[], nn.Module]) -> Task:
    example = Data((torch.zeros(8, 6),), (torch.zeros(8, dtype=torch.int64),))
    return Task("net", model, F.cross_entropy, lambda batch: example.rows(torch.arange(batch) % 8), batch=8)


def capture_of(function: Callable[[Tensor], Tensor], spec: TaskSpec = SPEC) -> CapturedTask:
    return capture_task(spec, task_of(lambda: Function(function)))


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("autocast", ["", "bfloat16"])
def test_a_right_trace_passes_without_a_note(autocast: str) -> None:
    ready = capture_task(replace_spec(autocast=autocast), task_of(lambda: Function(torch.tanh)))
    assert ready.notes == ()
    assert capture_task(SPEC, task_of(checkpointed)).notes == ()


def replace_spec(*, autocast: str) -> TaskSpec:
    return TaskSpec("test", autocast=autocast)


@pytest.mark.slow
def test_a_gradient_that_a_trace_has_lost_is_that_of_a_leaf_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with checkpoints, if a trace is not shown what they compute."""
    monkeypatch.setattr(traced_code, "show_gradient_modes", contextlib.nullcontext)
    monkeypatch.setattr(tried_step, "refuse_functions", lambda *found: None)
    task = task_of(checkpointed)
    ready = capture_task(SPEC, task)
    assert ready.leaf_modules
    assert re.search(r"the model is not traced rightly: the gradient of .* differs .* --trust-trace", ready.notes[0])
    assert capture_task(TRUSTING, task).notes == ()
    plan = plan_model(checkpointed(), torch.zeros(8, 6), torch.zeros(8, dtype=torch.int64), loss=F.cross_entropy)
    assert plan.leaf_modules == list(ready.leaf_modules)
    with pytest.raises(BadInput, match="not traced rightly"):
        capture_task(SPEC, task, search=False)


@pytest.mark.run
def test_a_buffer_that_a_trace_has_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that a trace does not have: the model counts in numpy, in the memory of its buffer."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            if not torch.compiler.is_exporting() and type(self.count) is Tensor:
                self.count.numpy()[0] += 1
            return self.linear(x)  # type: ignore[no-any-return]

    with pytest.raises(BadInput, match="not traced rightly: the buffer count differs"):
        capture_task(SPEC, task_of(Counts), search=False)
    assert capture_task(SPEC, task_of(Counts)).leaf_modules == ("(model)",)


@pytest.mark.slow
def test_steps_that_differ_are_refused_only_if_they_are_compared() -> None:
    class Counts(Function):
        steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            return super().forward(x) * self.steps

    with pytest.raises(BadInput, match=r"in every step at test_trace_check.py:\d+: a step leaves .* in steps \(1, t"):
        capture_task(SPEC, task_of(lambda: Counts(torch.tanh)), search=False)
    assert capture_task(SPEC, task_of(lambda: Counts(torch.tanh))).leaf_modules == ("(model)",)
    assert capture_task(TRUSTING, task_of(lambda: Counts(torch.tanh))).train.ops


# What cannot be compared ---------------------------------------------------------------------------------------------


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.randn(6),
        lambda x: F.dropout(x, 0.5),
        lambda x: x.round() * 3,
        lambda x: x[:, x.abs().sum(0).argsort()],
        lambda x: x / x.detach().abs().max(),
        lambda x: x * 1e18,
    ],
)
def test_random_and_rough_functions_are_not_refused(function: Callable[[Tensor], Tensor]) -> None:
    assert capture_of(function).notes == ()


def test_values_that_are_no_numbers_are_no_difference() -> None:
    (note,) = capture_of(lambda x: (x - 100).log()).notes
    assert note == "the plan's step was not compared with plain torch: not all of its values are finite"


def test_rounding_that_decides_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that computes the same otherwise differs as much as plain torch does from itself."""
    run = trace_check.run_graph
    eps = torch.finfo(torch.float32).eps

    def run_otherwise(graph, constants, model, loss, batch):  # type: ignore[no-untyped-def]
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1 + 2 * eps)
        return run(graph, constants, other, loss, batch)

    monkeypatch.setattr(trace_check, "run_graph", run_otherwise)
    (note,) = capture_of(lambda x: (x * 1e7).sin()).notes
    assert note.endswith("plain torch differs from itself as much, by rounding or chance")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("limit", "reason"),
    [("MAX_WHOLE_BYTES", "the model has 252 B"), ("MAX_VALUE_BYTES", "it computes"), ("MAX_FLOPS", "it takes ")],
)
def test_a_large_model_is_not_built(monkeypatch: pytest.MonkeyPatch, limit: str, reason: str) -> None:
    monkeypatch.setattr(trace_check, limit, 0)
    monkeypatch.setattr(trace_check, "run_plain", None)
    (note,) = capture_of(torch.tanh).notes
    assert note.startswith(f"the plan's step was not compared with plain torch: {reason}")
    assert " more than 0" in note


def test_a_model_that_fails_on_its_values_is_not_refused() -> None:
    def demand(x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting() and type(x) is Tensor:
            raise ValueError("too small")
        return x

    assert capture_of(demand).notes == ("the plan's step was not compared with plain torch: ValueError: too small",)


def test_a_loss_that_takes_fractions_gets_fractions() -> None:
    model = lambda: nn.Sequential(nn.Linear(6, 2), nn.Sigmoid())  # noqa: E731
    example = Data((torch.zeros(4, 6),), (torch.zeros(4, 2),))
    task = Task("net", model, F.binary_cross_entropy, lambda batch: example, batch=4)
    assert capture_task(SPEC, task).notes == ()


@pytest.mark.slow
def test_both_commands_and_python_may_leave_the_checks_out() -> None:
    assert RunConfig("net.py:task", trust_trace=True).task_spec.trust_trace
    assert read_task_spec("net.py:task", {"trust_trace": True}).trust_trace
    assert not RunConfig("net.py:task").task_spec.trust_trace
    model = Function(lambda x: x * random.random())
    example = torch.zeros(8, 6), torch.zeros(8, dtype=torch.int64)
    assert plan_model(model, *example, loss=F.cross_entropy, trust_trace=True)
    with pytest.raises(BadInput, match="draws random numbers of Python"):
        plan_model(model, *example, loss=F.cross_entropy)


def test_generators_are_left_as_they_are() -> None:
    before = torch.get_rng_state()
    capture_of(lambda x: F.dropout(x, 0.5))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_parameter_that_is_wrongly_frozen_is_found() -> None:
    model, example = nn.Linear(6, 3), Data((torch.randn(8, 6),), (torch.arange(8) % 3,))
    graph, constants = capture(model, F.cross_entropy, example.inputs, example.targets)
    notes = list[str]()

    def check(graph: Graph) -> None:
        check_trace(lambda: copy.deepcopy(model), F.cross_entropy, example, graph, constants, tell=notes.append)

    check(graph)
    with pytest.raises(BadInput, match="weight"):
        check(freeze_parameters(graph, ["weight"]))
    assert not notes
