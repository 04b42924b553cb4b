"""What capture makes of a model: names, kinds, constants, gradients - and errors that name the line."""

import copy
import gc
import inspect
import random
import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from cutting import subject
from marking import with_slow
from torch import Tensor, nn
from zoo import CASES, MORE_CASES

from cutset.errors import BadInput
from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.ir.graph import Graph

X, Y = torch.randn(4, 6), torch.randn(4, 6)


class Net(nn.Module):
    """Two layers, a buffer and a plain tensor; the forward pass is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))
        self.plain = torch.arange(6.0)


def net(forward: Callable[..., Tensor]) -> nn.Module:
    made: nn.Module = type("Made", (Net,), {"forward": forward})()
    return made


def of(forward: Callable[..., Tensor]) -> Graph:
    """The graph of a net with this forward pass."""
    return capture(net(forward), F.mse_loss, [X], [Y])[0]


# What is captured --------------------------------------------------------------------------------------------------


def test_the_callers_module_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).eval()
    before = copy.deepcopy(model.state_dict())
    capture(model, F.mse_loss, [X], [Y])
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert X.device.type == "cpu"


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", with_slow(list(CASES), list(MORE_CASES)))
def test_a_model_without_storage_gives_the_same_graph(name: str) -> None:
    case = subject(name)
    with torch.device("meta"):
        model, loss = case.fresh()
    empty, _ = capture(model, loss, case.batch.inputs, case.batch.targets)
    assert empty.digest == case.graph.digest


@pytest.mark.run
def test_threads_that_capture_leave_everything_as_it_was() -> None:
    """One of them would take another's stand-in for the function of Python, and leave it there."""
    before = random.random, warnings.filters[:], gc.isenabled()

    def capture_one(seed: int) -> str:
        model = net(lambda self, x: self.linear(x) if random.random() < 0 else self.other(x) * seed)
        return capture(model, F.mse_loss, [X], [Y])[0].digest

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(capture_one, [1, 2, 3] * 3))
    assert (random.random, warnings.filters[:], gc.isenabled()) == before
    assert found == found[:3] * 3
    assert len(set(found)) == 3


def test_a_huge_model_is_captured_without_its_weights() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(6, 200_000), nn.Linear(200_000, 200_000), nn.Linear(200_000, 6))
    graph, _ = capture(model, F.mse_loss, [X], [Y])
    assert sum(op.flops for op in graph.ops) > 2 * 4 * 200_000**2


def test_kinds_and_names_of_state() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    model[0].bias.requires_grad_(False)
    graph, constants = capture(
        model, nn.CrossEntropyLoss(weight=torch.rand(6)), [X], [torch.zeros(4, dtype=torch.int64)]
    )
    kinds = {name: t.kind for name, t in graph.tensors.items() if t.kind not in ("value", "random")}
    assert kinds == {
        "0.weight": "parameter",
        "0.bias": "frozen",
        "1.weight": "parameter",
        "1.bias": "parameter",
        "1.running_mean": "buffer",
        "1.running_var": "buffer",
        "1.num_batches_tracked": "buffer",
        "(loss).weight": "buffer",
        "input.0": "input",
        "target.0": "target",
    }
    assert constants == {}


def test_a_tied_weight_is_one_tensor_under_its_first_name() -> None:
    graph = subject("causal").graph
    assert "embed.weight" in graph.tensors
    assert "head.weight" not in graph.tensors
    readers = [op.sharding_rule for op in graph.ops if "embed.weight" in op.inputs]
    assert readers == ["aten.embedding", "aten.linear"]


def test_an_unused_parameter_is_kept_and_an_unused_operator_is_not() -> None:
    graph = of(lambda self, x: (self.other(x), self.linear(x))[1])
    assert "other.weight" in graph.tensors
    assert sum(op.sharding_rule == "aten.linear" for op in graph.ops) == 1


def test_constants_come_with_their_values_and_have_one_name_in_both_graphs() -> None:
    mask = torch.tril(torch.ones(4, 4)).bool()

    def forward(self: Net, x: Tensor) -> Tensor:
        return self.linear(x) * self.plain + torch.tensor([1.0, 2, 3, 4, 5, 6]) + mask.sum(1, keepdim=True)

    model = net(forward)
    graph, constants = capture(model, F.mse_loss, [X], [Y])
    evaluation, again = capture(model, None, [X])
    expected = [model.plain, torch.tensor([1.0, 2, 3, 4, 5, 6]), mask]
    assert len(constants) == 3
    assert all(any(torch.equal(value, v) for v in constants.values()) for value in expected)
    assert constants.keys() == again.keys()
    assert {t.name for t in graph.states if t.kind == "constant"} == constants.keys()
    values = collect_state(model, F.mse_loss, constants)
    assert all(t.name in values for t in (*graph.states, *evaluation.states))


def test_gradients_flow_from_parameters_and_stop_where_they_are_stopped() -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = self.other(x)
        return self.linear(x) * fixed + self.linear(x).detach().round() + (x > 0)

    graph = of(forward)
    flowing = {op.name for op in graph.ops if graph.tensors[op.outputs[0]].gradient}
    assert {"linear_1", "mul", "add", "mse_loss"} <= flowing
    assert not {"linear", "gt", "round_1"} & flowing
    assert not graph.tensors["input.0"].gradient


@pytest.mark.run
def test_axes_are_shared_where_operators_share_them() -> None:
    graph = subject("transformer").graph
    names = {graph.axes[axis][0]: graph.axes[axis][1] for axis in range(len(graph.axes))}
    sizes = graph.tensors["layer.self_attn.in_proj_weight"].sizes
    assert sizes == ((3, 4, 4), (16,))  # query, key and value; heads; size of a head
    assert names
    up, down = graph.tensors["layer.linear1.weight"], graph.tensors["layer.linear2.weight"]
    assert up.axes[0] == down.axes[1]  # the hidden units are one axis


def test_the_digest_is_of_what_the_model_computes() -> None:
    digests = {of(lambda self, x, p=p: F.leaky_relu(self.linear(x), p)).digest for p in (0.1, 0.1, 0.2)}  # type: ignore[misc]
    assert len(digests) == 2


def test_the_source_is_the_models_own_line() -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        return torch.exp(self.linear(x))

    graph, line = of(forward), inspect.getsourcelines(forward)[1] + 1
    exp = next(op for op in graph.ops if op.sharding_rule == "aten.exp")
    assert exp.source == f"test_export.py:{line}"
    linear = next(op for op in graph.ops if op.sharding_rule == "aten.linear")
    assert (linear.module, linear.source) == ("linear", f"test_export.py:{line}")


def test_normalised_weights_of_old_and_new_kind() -> None:
    for normed in (nn.utils.parametrizations.weight_norm, nn.utils.spectral_norm):
        graph, _ = capture(nn.Sequential(normed(nn.Linear(6, 6))), F.mse_loss, [X], [Y])
        assert graph.parameters


def test_a_weight_that_is_left_by_a_computation_does_not_prevent_the_copy() -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        model = nn.utils.weight_norm(nn.Linear(6, 6))
    graph, _ = capture(model, F.mse_loss, [X], [Y])
    assert {p.name for p in graph.parameters} == {"bias", "weight_g", "weight_v"}


@dataclass
class Output:
    """What a model of a library may return: the loss first, which is not there, then logits."""

    logits: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | None = None


class Library(nn.Module):
    """Takes integers, calls its parts by keyword, and returns a dataclass, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.part = nn.Embedding(7, 6), net(lambda self, *, hidden, mask=None: self.linear(hidden))

    def forward(self, ids: Tensor) -> Output:
        hidden = self.part(hidden=self.embed(ids), mask=None)
        return Output(hidden @ self.embed.weight.t(), (hidden,))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("blocks", [[], ["part"]])
def test_a_loss_may_take_a_part_of_a_dataclass(blocks: list[str]) -> None:
    ids = torch.zeros(4, 3, dtype=torch.int64)

    def loss(output: Output, target: Tensor) -> Tensor:
        return F.cross_entropy(output.logits.flatten(0, 1), target.flatten())

    graph, _ = capture(Library(), loss, [ids], [ids], leaf_modules=blocks)
    assert graph.tensors["input.0"].dtype == "int64"
    assert [op.sharding_rule for op in graph.ops][-1] == "aten.cross_entropy_loss"
    evaluation, _ = capture(Library(), None, [ids], leaf_modules=blocks)
    assert evaluation.tensors[evaluation.results[0]].shape == (4, 3, 7)


def test_a_model_that_gives_no_tensor_is_told_so() -> None:
    with pytest.raises(BadInput, match="returns a dict without a tensor"):
        capture(net(lambda self, x: {"size": 3}), None, [X])


# Errors ------------------------------------------------------------------------------------------------------------


class Branches(Net):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.linear(x)
        return x


class CastsWithoutGradients(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            with torch.no_grad():
                y = self.linear(x)
            return self.linear(x) + y


class OverwritesParameter(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.clamp_(-1, 1)
        return self.linear(x)


class Counts(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.plain += 1
        return self.linear(x)


class Conditional(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.exp, torch.sin, (self.linear(x),))


class WritesThroughExpand(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.diagonal().fill_(0.0)
        return y


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Branches, r"if x.sum\(\) > 0"),
        (CastsWithoutGradients, "switches gradients on or off within torch.autocast"),
        (OverwritesParameter, "overwritten"),
        (Counts, "overwritten"),
        (Conditional, "the operator cond cannot be planned"),
        (WritesThroughExpand, "overwritten through diagonal"),
    ],
)
def test_what_cannot_be_traced_is_named_with_its_line(kind, said, caplog) -> None:  # type: ignore[no-untyped-def]
    code, first = inspect.getsourcelines(kind)
    with pytest.raises(BadInput, match=said) as caught:
        capture(kind(), F.mse_loss, [X], [Y])
    assert caught.value.code == "E320"
    found = re.search(r"test_export\.py:(\d+)", caught.value.facts)
    assert found is not None
    assert first < int(found[1]) < first + len(code)
    assert "--machines 1" in caught.value.fix
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


def test_a_wrong_batch_is_named_with_the_line_where_it_fails(capfd, caplog) -> None:  # type: ignore[no-untyped-def]
    def forward(self: Net, x: Tensor) -> Tensor:
        return self.linear(x)

    with pytest.raises(BadInput, match=r"shapes \(4, 5\), \(4, 6\) at .*test_export\.py:\d+ \(return self") as caught:
        capture(net(forward), F.mse_loss, [torch.zeros(4, 5)], [Y])
    assert caught.value.code == "E321"
    assert "[4, 5] X [6, 6]" in caught.value.facts
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


def test_a_mistake_in_the_loss_is_a_wrong_batch_too() -> None:
    with pytest.raises(BadInput, match="E321"):
        capture(nn.Linear(6, 6), F.cross_entropy, [X], [torch.zeros(3, dtype=torch.int64)])


def test_a_buffer_that_is_assigned_is_named_with_what_to_write() -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x - self.mean)

    with pytest.raises(BadInput, match=r"assigns its buffer mean\n  fix: write self.mean.copy_"):
        of(forward)


def test_a_loss_that_holds_on_to_the_model_would_lose_a_gradient() -> None:
    model = nn.Linear(6, 6)
    with pytest.raises(BadInput, match="E320: the model's parameter weight is used from outside"):
        capture(model, lambda o, t: F.mse_loss(o, t) + model.weight.norm(), [X], [Y])


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.round()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return 2 * gradient


def test_a_backward_of_ones_own_would_be_lost_and_is_refused() -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        return Twice.apply(self.linear(x))  # type: ignore[no-any-return]

    line = inspect.getsourcelines(Twice)[1]
    with pytest.raises(BadInput, match=rf"E320: .* computes gradients with Twice.backward at test_export\.py:{line}"):
        of(forward)
    assert capture(net(forward), None, [X])[0].ops  # a prediction needs no gradient


def test_hooks_on_gradients_would_be_lost_and_are_refused() -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.register_hook(lambda gradient: gradient * 2)
        return y

    line = inspect.getsourcelines(forward)[1] + 2
    with pytest.raises(BadInput, match=rf"E320: the model hooks a gradient at test_export\.py:{line}"):
        of(forward)
    model = nn.Sequential(nn.Linear(6, 6))
    handle = model[0].weight.register_hook(lambda gradient: gradient)
    with pytest.raises(BadInput, match=r"E320: the parameter 0\.weight has a hook on its gradient"):
        capture(model, F.mse_loss, [X], [Y])
    handle.remove()
    model[0].register_full_backward_hook(lambda *gradients: None)
    with pytest.raises(BadInput, match="E320: the module 0 has a backward hook"):
        capture(model, F.mse_loss, [X], [Y])


def test_checkpointed_activations_are_no_gradient_of_ones_own() -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(self.other, self.linear(x), use_reentrant=False)  # type: ignore[no-any-return]

    assert sum(op.sharding_rule == "aten.linear" for op in of(forward).ops) == 2


def test_random_numbers_whose_count_depends_on_values_are_refused() -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        return F.rrelu(self.linear(x), training=True)

    with pytest.raises(BadInput, match=r"E324: aten.rrelu.default at test_export\.py:\d+ draws a number of"):
        of(forward)
