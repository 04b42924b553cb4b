"""Which outputs have a row for each sample that depends on no other one: by what models give for other samples."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.ir.sample_rows import find_comparison, has_rows_of_samples

BATCH, FEATURES = 6, 6


class Body(nn.Module):
    """Applies a function to what a layer gives."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(FEATURES, FEATURES), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(torch.tanh(self.layer(x)))


APART: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x * 2,
    "over features": lambda x: (x - x.mean(1, keepdim=True)).softmax(1),
    "a number each": lambda x: x.sum(1),
    "steps of time": lambda x: x.view(BATCH, 2, 3).transpose(1, 2),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(*[x.view(BATCH, 1, 3, 2)] * 3),
    "convolution": lambda x: nn.functional.conv1d(x[:, None], torch.ones(2, 1, 3), padding=1),
    "with a constant": lambda x: nn.functional.pad(x, (0, 2), value=1.0) + torch.arange(8.0),
}
TOGETHER: dict[str, Callable[[Tensor], Tensor]] = {
    "samples second": lambda x: x.T,
    "like each other": lambda x: x @ x.T,
    "a mean over the batch": lambda x: x - x.mean(0),
    "the order of samples": lambda x: x.flip(0),
    "shares of the batch": lambda x: x.softmax(0),
    "running sums": lambda x: x.cumsum(0),
    "neighbours": lambda x: x + x.roll(1, 0),
    "the first sample": lambda x: x - x[:1],
    "several numbers each": lambda x: x.reshape(2 * BATCH, 3),
    "one number": lambda x: x.square().mean(),
    "no sample": lambda x: torch.arange(float(BATCH)),
    "the largest": lambda x: x.topk(2, 0).values,
}


@pytest.mark.parametrize("name", [*APART, *TOGETHER])
def test_rows_depend_on_their_own_sample_alone(name: str) -> None:
    model, half = Body((APART | TOGETHER)[name]), BATCH // 2
    x, other = torch.randn(2, BATCH, FEATURES, generator=torch.Generator().manual_seed(1)).unbind()
    with torch.no_grad():
        output, *changed = (
            model(torch.cat(both))
            for both in ((x[:half], x[half:]), (x[:half], other[half:]), (other[:half], x[half:]))
        )
    is_apart = output.shape[:1] == (BATCH,) and all(
        torch.equal(output[same], now[same]) and not torch.equal(output, now)
        for same, now in zip((slice(half), slice(half, None)), changed, strict=True)
    )
    assert is_apart == (name in APART)
    graph, _ = capture(model.eval(), None, [x])
    assert has_rows_of_samples(graph) == is_apart


COMPARES = {
    "like each other": "matmul",
    "a mean over the batch": "sub",
    "the order of samples": "flip",
    "shares of the batch": "softmax",
    "running sums": "cumsum",
    "neighbours": "roll",
    "samples second": "",
    "several numbers each": "",
    "one number": "",
}


@pytest.mark.parametrize(("name", "operator"), [*COMPARES.items(), *((name, "") for name in APART)])
def test_the_operator_that_compares_samples_is_named_but_not_the_mean_of_a_loss(name: str, operator: str) -> None:
    model, x = Body((APART | TOGETHER)[name]), torch.zeros(BATCH, FEATURES)
    graph, _ = capture(
        model, lambda output, weights: (output.square().mean() + output.sum()) * weights, [x], [torch.tensor(2.0)]
    )
    found = find_comparison(graph)
    assert (found.name if found else "") == operator


def test_a_batch_norm_compares_samples_in_training_and_a_mean_over_labels_does_not() -> None:
    model, x = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4)), torch.zeros(BATCH, FEATURES)
    labels = torch.zeros(BATCH, dtype=torch.int64)
    for layers, operator in ((model, "batch_norm"), (model[:1], "")):
        found = find_comparison(capture(layers, nn.functional.cross_entropy, [x], [labels])[0])
        assert (found.name if found else "") == operator


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / len(x),
        lambda x: x * torch.linspace(0.0, 1.0, len(x))[:, None],
        lambda x: torch.cat([x, torch.arange(float(len(x)))[:, None]], 1),
        lambda x: x.view(len(x), 2, 3).sum(1) ** len(x),
    ],
)
def test_what_is_computed_with_the_number_of_samples_is_not_for_another_number(
    function: Callable[[Tensor], Tensor],
) -> None:
    model, x = Body(function), torch.randn(11, FEATURES)
    graph, _ = capture(model.eval(), None, [x])
    assert has_rows_of_samples(graph) is None


class Recurrent(nn.Module):
    """An operator without a rule; what is read of it may be one number."""

    def __init__(self, *, sums: bool) -> None:
        super().__init__()
        self.lstm, self._sums = nn.LSTM(FEATURES, 4, batch_first=True), sums

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.lstm(x[:, None])
        return output.sum() if self._sums else output


class Remembering(nn.Module):
    """Takes what it has kept of the last batch from each sample of this one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        output = x - self.kept
        self.kept.copy_(x.mean(0))
        return output


def test_an_operator_without_a_rule_hides_whether_it_compares_samples() -> None:
    for model, expected in ((Recurrent(sums=False), None), (Recurrent(sums=True), False)):
        graph, _ = capture(model.eval(), None, [torch.zeros(BATCH, FEATURES)])
        assert has_rows_of_samples(graph) is expected
        assert find_comparison(graph) is None


def test_what_a_batch_leaves_in_a_buffer_reaches_the_samples_of_the_next() -> None:
    graph, _ = capture(Remembering().eval(), None, [torch.zeros(BATCH, FEATURES)])
    assert has_rows_of_samples(graph) is False
