"""What a model remembers from step to step: tables are traced, whatever makes steps differ is refused by name."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cutting import DOUBLE, Subject, assert_same, run_cut, run_plain
from torch import Tensor, nn
from zoo import Case, real

from cutset.errors import BadInput
from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.dataflow.cut import one_machine_cut

X, Y = torch.randn(4, 6), torch.randn(4, 6)
CALLS = [0]


class Inner(nn.Module):
    """A layer that remembers something; the forward pass is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.kept: Tensor | None = None
        self.tables: dict[int, Tensor] = {}
        self.sizes: list[torch.Size] = []
        self.steps, self.first = 0, True
        self.random = random.Random(0)
        self.register_buffer("mean", torch.zeros(6))
        self.bias = nn.Parameter(torch.randn(5))


class Net(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(6, 6), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.before(x))  # type: ignore[no-any-return]


def net(forward: Callable[..., Tensor]) -> nn.Module:
    return Net(type("Inner", (Inner,), {"forward": forward})())


# What is traced ------------------------------------------------------------------------------------------------------


def keeps_a_table(inner: Inner, x: Tensor) -> Tensor:
    if inner.kept is None or inner.kept.shape[0] < x.shape[1]:
        inner.kept = torch.arange(x.shape[1]).to(x).cos()
    return inner.linear(x * inner.kept)  # type: ignore[no-any-return]


def keeps_tables_by_length(inner: Inner, x: Tensor) -> Tensor:
    if x.shape[1] not in inner.tables:
        inner.tables[x.shape[1]] = torch.outer(torch.arange(6.0), torch.arange(6.0)).sin().sum(0).to(x)
    return inner.linear(x * inner.tables[x.shape[1]])  # type: ignore[no-any-return]


def keeps_positions(inner: Inner, x: Tensor) -> Tensor:
    if inner.kept is None:
        at = torch.arange(6)
        inner.kept = (at[None] - at[:, None]).clamp(-2, 2) + 2
    return inner.linear(x) @ inner.bias[inner.kept]  # type: ignore[no-any-return]


def registers_a_table(inner: Inner, x: Tensor) -> Tensor:
    if not hasattr(inner, "table"):
        inner.register_buffer("table", torch.arange(6).to(x).sin(), persistent=False)
    return inner.linear(x * inner.table)  # type: ignore[no-any-return]


def shows_its_activations(inner: Inner, x: Tensor) -> Tensor:
    inner.kept = inner.linear(x)
    inner.sizes.append(x.shape)
    return inner.kept.tanh()


def adds_up_for_a_log(inner: Inner, x: Tensor) -> Tensor:
    found = inner.linear(x).detach().abs().mean()
    inner.kept = found if inner.kept is None else inner.kept + found
    return inner.linear(x)  # type: ignore[no-any-return]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    "forward",
    [
        keeps_a_table,
        keeps_tables_by_length,
        keeps_positions,
        registers_a_table,
        shows_its_activations,
        adds_up_for_a_log,
    ],
    ids=lambda forward: forward.__name__,
)
def test_what_does_not_change_the_next_step_is_traced(forward: Callable[..., Tensor]) -> None:
    of = Subject(Case(lambda: net(forward), lambda: Data((real(4, 6),), (real(4, 6),)), F.mse_loss), DOUBLE)
    plain = run_plain(of)
    assert_same(run_cut(of, one_machine_cut(of.graph)), plain, rtol=1e-12)


def counts(inner: Inner, x: Tensor) -> Tensor:
    inner.steps += 1
    return inner.linear(x)  # type: ignore[no-any-return]


def test_a_counter_without_an_effect_is_told() -> None:
    notes: list[str] = []
    capture(net(counts), F.mse_loss, [X], [Y], tell=notes.append)
    change = "steps of inner (15, then 16)"
    assert notes == [f"every step changes {change}; the first 16 compute the same, and so will all that are planned"]
    notes.clear()
    capture(net(keeps_a_table), F.mse_loss, [X], [Y], tell=notes.append)
    assert notes == []


# What is refused -----------------------------------------------------------------------------------------------------


def multiplies_by_a_counter(inner: Inner, x: Tensor) -> Tensor:
    inner.steps += 1
    return inner.linear(x) * inner.steps  # type: ignore[no-any-return]


def changes_every_fifth_step(inner: Inner, x: Tensor) -> Tensor:
    inner.steps += 1
    return inner.linear(x if inner.steps % 5 else 2 * x)  # type: ignore[no-any-return]


def begins_otherwise(inner: Inner, x: Tensor) -> Tensor:
    inner.mean.copy_(x.detach().mean(0) if inner.first else 0.9 * inner.mean + 0.1 * x.detach().mean(0))
    inner.first = False
    return inner.linear(x - inner.mean)  # type: ignore[no-any-return]


def reads_the_last_step(inner: Inner, x: Tensor) -> Tensor:
    y = inner.linear(x if inner.kept is None else x + inner.kept)
    inner.kept = y.detach()
    return y  # type: ignore[no-any-return]


def keeps_its_noise(inner: Inner, x: Tensor) -> Tensor:
    if inner.kept is None:
        inner.kept = torch.randn(6)
    return inner.linear(x * inner.kept)  # type: ignore[no-any-return]


def draws_of_its_own(inner: Inner, x: Tensor) -> Tensor:
    return inner.linear(x) * inner.random.random()  # type: ignore[no-any-return]


def counts_elsewhere(inner: Inner, x: Tensor) -> Tensor:
    CALLS[0] += 1
    return inner.linear(x) * CALLS[0]  # type: ignore[no-any-return]


def draws_in_python(inner: Inner, x: Tensor) -> Tensor:
    scale = random.uniform(0.5, 1.5)
    return inner.linear(x) * scale  # type: ignore[no-any-return]


def draws_in_numpy(inner: Inner, x: Tensor) -> Tensor:
    scale = float(np.random.rand())
    return inner.linear(x) * scale  # type: ignore[no-any-return]


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("forward", "line", "attribute"),
    [
        (multiplies_by_a_counter, 2, "steps of inner (1, then 2)"),
        (changes_every_fifth_step, 2, "steps of inner (4, then 5)"),
        (begins_otherwise, 1, "first of inner (True, then False)"),
        (reads_the_last_step, 1, "kept of inner"),
        (keeps_its_noise, 3, "kept of inner"),
        (draws_of_its_own, 1, "random of inner"),
        (counts_elsewhere, 2, ""),
        (draws_in_python, 1, "draws random numbers of Python or numpy"),
        (draws_in_numpy, 1, "draws random numbers of Python or numpy"),
    ],
)
def test_steps_that_differ_are_refused_by_line_module_and_attribute(
    forward: Callable[..., Tensor], line: int, attribute: str
) -> None:
    at = f"test_repeated_steps.py:{forward.__code__.co_firstlineno + line}"
    with pytest.raises(BadInput, match="E320") as caught:
        capture(net(forward), F.mse_loss, [X], [Y])
    assert f"at {at}, in module inner (Inner)" in caught.value.facts
    assert attribute in caught.value.facts
    capture(net(forward), F.mse_loss, [X], [Y], trust=True)
    if "draws" in attribute:  # which nobody could repeat, a leaf module neither
        assert "--leaf-modules" not in caught.value.fix
        with pytest.raises(BadInput, match="E326: the leaf module inner draws random numbers of Python or numpy"):
            capture(net(forward), F.mse_loss, [X], [Y], leaf_modules=["inner"])
        return
    assert "--leaf-modules 'inner'" in caught.value.fix
    graph, _ = capture(net(forward), F.mse_loss, [X], [Y], leaf_modules=["inner"])
    assert any(op.target == "cutset.leaf_module.default" for op in graph.ops)


def test_generators_are_not_disturbed() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    capture(net(keeps_a_table), F.mse_loss, [X], [Y])
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before
