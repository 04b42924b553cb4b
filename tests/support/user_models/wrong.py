"""What a user might bring and what cannot work: each factory is wrong in one way."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cutset.models.task import Data, Task, make_example_batches

FEATURES, CLASSES = 8, 3
constant = 3


def samples(split: str) -> Data:
    count = 96 if split == "train" else 50
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return Data((torch.randn(count, FEATURES, generator=generator),), (labels,))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def make(model: Callable[[], nn.Module] = mlp, **more: Any) -> Task:
    given: dict[str, Any] = {
        "loss": nn.functional.cross_entropy,
        "example": make_example_batches(((FEATURES,),), classes=CLASSES),
        "data": samples,
        "batch": 8,
    }
    return Task("wrong", model, **{**given, **more})


# The factory ---------------------------------------------------------------------------------------------------------


def gives_text() -> str:
    return "a model"


def gives_nothing() -> None:
    return None


def raises() -> Task:
    raise KeyError("hidden_size")


def needs_arguments(width: int) -> Task:
    return make(lambda: nn.Linear(FEATURES, width))


def exits() -> Task:
    raise SystemExit("no configuration found")


def no_batch() -> Task:
    return make(batch=0)


# The model -----------------------------------------------------------------------------------------------------------


def model_raises() -> Task:
    return make(lambda: nn.Linear(FEATURES, -1))


def model_gives_text() -> Task:
    return make(lambda: "a model")


def model_is_no_function() -> Task:
    return make(model=mlp())


def model_reads_a_file() -> Task:
    def model() -> nn.Module:
        net = mlp()
        net.load_state_dict(torch.load("weights.pt"))
        return net

    return make(model)


class Misfit(nn.Module):
    """Its second layer does not fit its first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 16), nn.Linear(15, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x)


def misfit() -> Task:
    return make(Misfit)


class Branches(nn.Module):
    """Which way it goes depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.mean() > 0:
            return y
        return -y


def branches() -> Task:
    return make(Branches)


class Counts(nn.Module):
    """Takes a number out of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * x.abs().max().item()


def counts() -> Task:
    return make(Counts)


def without_parameters() -> Task:
    return make(lambda: nn.Flatten())


class Undefined(nn.Module):
    """Its output is not a number from the first step on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / 0.0


def not_a_number() -> Task:
    return make(Undefined)


class PartlyComplex(nn.Module):
    """Its parameters are complex and real."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.layer = nn.Parameter(torch.ones(FEATURES, dtype=torch.complex64)), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x * self.turn).real)


def partly_complex() -> Task:
    return make(PartlyComplex)


class Pair(nn.Module):
    """Gives more than its loss takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), x


def gives_a_pair() -> Task:
    return make(Pair)


# The loss ------------------------------------------------------------------------------------------------------------


def loss_of_each_sample() -> Task:
    return make(loss=nn.CrossEntropyLoss(reduction="none"))


def loss_without_gradient() -> Task:
    return make(loss=lambda output, target: (output.argmax(1) != target).float().mean())


def loss_without_gradient_by_chance() -> Task:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        wrong = (output.argmax(1) != target).float().mean()
        return wrong if wrong > 0.5 else 2 * wrong

    return make(loss=loss)


def loss_raises() -> Task:
    return make(loss=nn.functional.mse_loss)


def loss_without_targets() -> Task:
    return make(loss=lambda output: output.mean())


# The data ------------------------------------------------------------------------------------------------------------


def no_data() -> Task:
    return make(data=None)


def no_test_split() -> Task:
    def data(split: str) -> Data:
        return {"train": samples("train")}[split]

    return make(data=data)


def data_gives_tensors() -> Task:
    return make(data=lambda split: torch.zeros(4, FEATURES))


def data_gives_nothing() -> Task:
    return make(data=lambda split: Data((torch.zeros(0, FEATURES),), (torch.zeros(0, dtype=torch.int64),)))


def no_test_samples() -> Task:
    def data(split: str) -> Data:
        return samples("train") if split == "train" else samples("test").rows(torch.arange(0))

    return make(data=data)


def ragged_data() -> Task:
    return make(data=lambda split: Data((torch.zeros(4, FEATURES),), (torch.zeros(5, dtype=torch.int64),)))


def loud_samples() -> Task:
    """So large that the first step of a large rate leaves no finite weight."""
    return make(data=lambda split: Data((1e3 * samples(split).inputs[0],), samples(split).targets))


def labels_out_of_range() -> Task:
    def data(split: str) -> Data:
        found = samples(split)
        return Data(found.inputs, (found.targets[0] + 1,))

    return make(data=data)


def one_label_out_of_range() -> Task:
    def data(split: str) -> Data:
        found = samples(split)
        labels = found.targets[0].clone()
        labels[-1] = 7
        return Data(found.inputs, (labels,)) if split == "train" else found

    return make(data=data)


def wide_samples() -> Task:
    return make(data=lambda split: Data((torch.zeros(96, 9),), (torch.zeros(96, dtype=torch.int64),)))


def float_labels() -> Task:
    return make(data=lambda split: Data(samples(split).inputs, (torch.zeros(len(samples(split))),)))


def double_samples() -> Task:
    return make(data=lambda split: Data((samples(split).inputs[0].double(),), samples(split).targets))


# The example ---------------------------------------------------------------------------------------------------------


def example_of_another_width() -> Task:
    return make(example=make_example_batches(((FEATURES + 1,),), classes=CLASSES))


def example_raises() -> Task:
    def example(batch: int) -> Data:
        return Data((torch.zeros(batch, FEATURES) / {}[batch],), ())

    return make(example=example)


def example_is_a_tensor() -> Task:
    return make(example=lambda batch: torch.zeros(batch, FEATURES))


def example_of_another_batch() -> Task:
    return make(example=lambda batch: make_example_batches(((FEATURES,),), classes=CLASSES)(4))


def example_ragged() -> Task:
    return make(example=lambda batch: Data((torch.zeros(batch, FEATURES),), (torch.zeros(batch + 1),)))


# The count of right answers ------------------------------------------------------------------------------------------


def correct_is_a_share() -> Task:
    return make(correct=lambda outputs, labels: 0.25)


def metric_raises() -> Task:
    def broken(outputs: Tensor, classes: Tensor) -> Tensor:
        raise KeyError("no such class")

    return make(metrics={"broken": broken})


def no_score() -> Task:
    """Its loss takes two tensors, and in evaluation there is one."""

    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor) -> Any:
            return (self.net(x), self.net(2 * x)) if self.training else self.net(x)

    def loss(outputs: tuple[Tensor, Tensor], classes: Tensor) -> Tensor:
        main, auxiliary = outputs
        return nn.functional.cross_entropy(main + auxiliary, classes)

    return make(Auxiliary, loss=loss, correct=None)


def correct_raises() -> Task:
    def correct(outputs: Tensor, labels: Tensor) -> int:
        raise RuntimeError("no such class")

    return make(correct=correct)
