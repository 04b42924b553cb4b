"""A model of many like layers, traced without the middle of them, gives the graph of one that is traced whole."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from layer_stacks import WIDTH, Called, CalledOtherwise, Doubled, Layer
from torch import Tensor, nn

from cutset.partition.capture import export
from cutset.partition.capture.export import capture

DEPTH = 9
X = torch.zeros(4, WIDTH)


def loss(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


class Model(nn.Module):
    """Like layers between two others. run: what the model does with them."""

    def __init__(self, run: Callable[["Model", Tensor], Tensor], make: Callable[[], nn.Module] = Layer) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(make() for _ in range(DEPTH))
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.run(self, self.first(x).tanh()).tanh())


def run_all(model: Model, x: Tensor) -> Tensor:
    for layer in model.layers:
        x = layer(x)
    return x


def make_plain() -> nn.Module:
    return Model(run_all)


class Normalised(nn.Module):
    """Overwrites buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.linear(x)).relu()


class Masked(nn.Module):
    """Gets a tensor by keyword, and returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.ReLU())

    def forward(self, x: Tensor, *, mask: Tensor, scale: float) -> tuple[Tensor, None]:
        a, b, c = self.linear(x).chunk(3, dim=1)
        return (a + b * c) * mask * scale, None


def run_masked(model: Model, x: Tensor) -> Tensor:
    mask = x > 0
    for layer in model.layers:
        x, _ = layer(x, mask=mask, scale=0.5)
    return x


class Attention(nn.Module):
    """An encoder of torch, of layers without the names of a list."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x.reshape(2, 2, WIDTH)).reshape(4, WIDTH)


def run_with_tables(model: Model, x: Tensor) -> Tensor:
    """Have torch count names of nodes up once more, as for the results of a part without gradients."""
    with torch.no_grad():
        tables = x.sin(), x.cos(), x.tan()
    return run_masked(model, x + tables[0] * tables[1] + tables[2])


def run_with_mask_for_exports(model: Model, x: Tensor) -> Tensor:
    """Hand on a mask in an export only, as models of transformers do."""
    mask = torch.ones_like(x) if torch.compiler.is_exporting() else 1.0
    for layer in model.layers:
        x, _ = layer(x, mask=mask, scale=0.5)
    return x


GROWN = {
    "plain": make_plain,
    "batch norm": lambda: Model(run_all, Normalised),
    "mask": lambda: Model(run_masked, Masked),
    "sequential": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Layer() for _ in range(DEPTH))),
    "attention": Attention,
    "mask in exports": lambda: Model(run_with_mask_for_exports, Masked),
    "tables without gradients": lambda: Model(run_with_tables, Masked),
    "two chains": lambda: nn.Sequential(make_plain(), nn.Sequential(*(Normalised() for _ in range(DEPTH)))),
}


def assert_same_as_whole(make: Callable[[], nn.Module], *, training: bool = True, autocast: str = "") -> None:
    graphs = []
    for reuse in (True, False):
        criterion = loss if training else None
        graphs.append(capture(make(), criterion, (X,), (X,), reuse=reuse, autocast=autocast))
    assert graphs[0][0] == graphs[1][0]
    assert list(graphs[0][0].tensors) == list(graphs[1][0].tensors)
    assert {name: value.tolist() for name, value in graphs[0][1].items()} == {
        name: value.tolist() for name, value in graphs[1][1].items()
    }


@pytest.mark.parametrize("name", GROWN)
@pytest.mark.run
def test_the_middle_of_like_layers_is_not_traced(name: str, grown: list[int]) -> None:
    assert_same_as_whole(GROWN[name])
    assert grown
    assert all(count >= DEPTH - 6 for count in grown)
    assert len(grown) == (2 if name == "two chains" else 1)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["batch norm", "mask"])
@pytest.mark.run
def test_nor_is_it_in_evaluation(name: str, grown: list[int]) -> None:
    assert_same_as_whole(GROWN[name], training=False)
    assert grown


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["mask", "batch norm"])
@pytest.mark.run
def test_nor_is_it_with_casts(name: str, grown: list[int]) -> None:
    assert_same_as_whole(GROWN[name], autocast="bfloat16")
    assert grown


def run_with_taps(model: Model, x: Tensor) -> Tensor:
    seen = []
    for layer in model.layers:
        x = layer(x)
        seen.append(x)
    return torch.stack(seen[2:6]).sum(0) + x


def run_with_penalty(model: Model, x: Tensor) -> Tensor:
    return run_all(model, x) + sum(p.square().sum() for p in model.layers.parameters())


def run_with_count(model: Model, x: Tensor) -> Tensor:
    return run_all(model, x) / sum(p.numel() for p in model.layers.parameters())


def run_with_count_within(model: Model, x: Tensor) -> Tensor:
    mask, count = x > 0, sum(p.numel() for p in model.layers.parameters())
    for layer in model.layers:
        x, _ = layer(x, mask=mask, scale=1 / count)
    return x


def run_with_count_in_attributes(model: Model, x: Tensor) -> Tensor:
    for layer in model.layers:
        layer.scale = 1 / len(list(model.parameters()))
    return run_all(model, x)


def run_with_weight(number: int) -> Callable[[Model, Tensor], Tensor]:
    """Read a parameter by its number."""
    return lambda model, x: run_all(model, x) + list(model.layers.parameters())[number].sum()


def run_backwards(model: Model, x: Tensor) -> Tensor:
    for layer in reversed(model.layers):
        x = layer(x)
    return x


def run_with_two(model: Model, x: Tensor) -> Tensor:
    for i in range(0, DEPTH - 1, 2):
        x = model.layers[i](x) + model.layers[i + 1](x)
    return x


def run_twice(model: Model, x: Tensor) -> Tensor:
    return run_all(model, run_all(model, x))


def run_without_gradient(model: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = run_all(model, x)
    return x + y


def run_from_two_lines(model: Model, x: Tensor) -> Tensor:
    for i, layer in enumerate(model.layers):
        x = layer(x) if i % 2 else layer(x.clone())
    return x


def run_with_the_last_but_two(model: Model, x: Tensor) -> Tensor:
    seen = [x]
    for layer in model.layers:
        x = layer(x)
        seen.append(x)
    return x + list(dict.fromkeys(seen))[-3]


def run_with_count_of_values(model: Model, x: Tensor) -> Tensor:
    changes = 0
    for layer in model.layers:
        y, x = x, layer(x)
        changes += y is not x
    return x * torch.tensor(1 / changes)


def run_frozen_in_part(model: Model, x: Tensor) -> Tensor:
    model.layers[DEPTH // 2].wide.weight.requires_grad_(False)
    return run_all(model, x)


def run_and_select(model: Model, x: Tensor) -> Tensor:
    x = run_all(model, x)
    chosen = x.sum(1) > 0
    return x.index_put((chosen,), x[chosen].exp())


class Copied(Layer):
    """Has nodes in a trace that are no operators, as of `copy_`."""

    def forward(self, x: Tensor) -> Tensor:
        fresh = torch.empty_like(x)
        fresh.copy_(x)
        return super().forward(fresh)


class AndCopied(nn.Module):
    """Copies after such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Copied() for _ in range(DEPTH)))

    def forward(self, x: Tensor) -> Tensor:
        y, x = self.layers(x), x.clone()
        x[:, :4] = y[:, :4]
        return x


class Apart(nn.Module):
    """Other modules stand between the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.ModuleDict({"a": Layer(), "b": nn.Linear(WIDTH, 1)}) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part["a"](x)
        return x


@torch.library.custom_op("test_grown_draft::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


double.register_fake(torch.empty_like)
double.register_autograd(lambda context, gradient: gradient * 2)


class WithCustomOperator(Layer):
    """Calls an operator that has its own gradient, which torch makes an autograd function of."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(double(x))


def make_tied() -> nn.Module:
    model = Model(run_all, lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    model.last.weight = model.layers[DEPTH // 2][0].weight
    return model


def make_odd(place: int) -> nn.Module:
    layers = [Layer(scale=0.5 if i == place else 1.0) for i in range(2 * DEPTH)]
    return nn.Sequential(*layers)


OTHERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "taps": (lambda: Model(run_with_taps), 0),
    "penalty on all parameters": (lambda: Model(run_with_penalty), 0),
    "count of parameters": (lambda: Model(run_with_count), 1),
    "count of parameters within layers": (lambda: Model(run_with_count_within, Masked), 1),
    "count of parameters in attributes": (lambda: Model(run_with_count_in_attributes), 1),
    "weight of a layer that is traced": (lambda: Model(run_with_weight(0)), 1),
    "weight of a layer that is not": (lambda: Model(run_with_weight(6 * (DEPTH // 2) + 2)), 0),
    "backwards": (lambda: Model(run_backwards), 1),
    "two at a time": (lambda: Model(run_with_two), 0),
    "twice": (lambda: Model(run_twice), 0),
    "without gradient": (lambda: Model(run_without_gradient), 0),  # each parameter is detached before all layers
    "from two lines": (lambda: Model(run_from_two_lines), 0),
    "the last but two": (lambda: Model(run_with_the_last_but_two), 0),
    "count of values": (lambda: Model(run_with_count_of_values), 0),
    "frozen in part": (lambda: Model(run_frozen_in_part), 0),
    "a size that depends on data": (lambda: Model(run_and_select), 1),
    "names of no operators": (AndCopied, 1),
    "other modules between": (Apart, 1),
    "called in their own way": (lambda: Model(run_all, Called), 1),
    "computing when called": (lambda: Model(run_all, Doubled), 0),
    "not called by torch": (lambda: Model(run_all, CalledOtherwise), 0),
    "custom operators": (lambda: Model(run_all, WithCustomOperator), 1),
    "tied": (make_tied, 0),
    "an odd one": (lambda: make_odd(DEPTH), 2),
    "an odd one near the beginning": (lambda: make_odd(2), 1),
}


@pytest.mark.first_cases(12)
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.run
def test_what_the_model_does_with_its_layers_is_in_the_graph(name: str, grown: list[int]) -> None:
    make, chains = OTHERS[name]
    assert_same_as_whole(make)
    assert len(grown) == chains


class Penalty(nn.Module):
    """A loss that holds parameters of the model."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.weights = nn.ParameterList([layer.wide.weight for layer in model])

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output, target) + sum(weight.square().sum() for weight in self.weights)


@pytest.mark.run
def test_a_loss_may_hold_parameters_of_layers(grown: list[int]) -> None:
    graphs = []
    for reuse in (True, False):
        model = nn.Sequential(*(Layer() for _ in range(DEPTH)))
        graphs.append(capture(model, Penalty(model), (X,), (X,), reuse=reuse)[0])
    assert graphs[0] == graphs[1]
    assert not grown


@pytest.mark.run
def test_twice_as_many_layers_make_no_longer_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, export_step = list[int](), export._export

    def trace(*args: Any) -> torch.export.ExportedProgram:
        exported = export_step(*args)
        lengths.append(len(exported.graph.nodes))
        return exported

    monkeypatch.setattr(export, "_export", trace)
    for depth in (DEPTH, 2 * DEPTH):
        graph, _ = capture(nn.Sequential(*(Layer() for _ in range(depth))), loss, (X,), (X,))
        assert sum(op.target == "aten.linear.default" for op in graph.ops) == 2 * depth
    assert len(lengths) == 2
    assert lengths[0] == lengths[1]
