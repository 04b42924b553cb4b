"""Tasks whose success is no share of right answers, and models that give more than one tensor."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutset.models.metrics import Perplexity
from cutset.models.task import Data, Task, make_example_batches

FEATURES, VOCABULARY, LENGTH = 8, 11, 5


def regression() -> Task:
    """The mean absolute error beside the loss."""
    example = make_example_batches(((FEATURES,),))
    return Task(
        "regression",
        lambda: nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(0)),
        nn.functional.mse_loss,
        lambda batch: Data(example(batch).inputs, (torch.zeros(batch),)),
        lambda split: numbers(96 if split == "train" else 50),
        batch=8,
        metrics={"mae": lambda outputs, target: (outputs - target).abs().mean()},
    )


def numbers(count: int) -> Data:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, FEATURES, generator=generator)
    return Data((x,), (x.sum(1) + 0.1 * torch.randn(count, generator=generator),))


@dataclass
class Answer:
    """What a model gives that computes its own loss, beside much that nobody reads."""

    loss: Tensor
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


class Language(nn.Module):
    """Predicts the next word from the present one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)

    def forward(self, words: Tensor, labels: Tensor) -> Answer:
        hidden = self.table(words)
        logits = self.out(torch.relu(hidden))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Answer(loss, logits, (hidden,))


def sentences(count: int) -> Data:
    words = torch.randint(VOCABULARY, (count, LENGTH), generator=torch.Generator().manual_seed(count))
    labels = (words * 3 + 1) % VOCABULARY
    return Data((words, labels), (labels,))


def language() -> Task:
    """A loss inside the model, and perplexity."""
    return Task(
        "language",
        Language,
        lambda answer, labels: answer.loss,
        sentences,
        lambda split: sentences(96 if split == "train" else 50),
        batch=8,
        correct=None,
        metrics={"perplexity": Perplexity(logits=lambda answer: answer.logits)},
    )


class Prototypes(nn.Module):
    """Gives a parameter, too, of as many rows as a batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.rows = nn.Linear(FEATURES, 3), nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        return OrderedDict(classes=self.head(x), rows=self.rows)


def prototypes() -> Task:
    """A loss that reads all rows of a parameter."""

    def data(split: str) -> Data:
        x, (y,) = numbers(96 if split == "train" else 50).inputs[0], numbers(96 if split == "train" else 50).targets
        return Data((x,), ((y > 0).long(),))

    return Task(
        "prototypes",
        Prototypes,
        lambda outputs, classes: nn.functional.cross_entropy(outputs["classes"], classes) + outputs["rows"].norm(),
        data=data,
        batch=8,
    )


class Reconstruction(nn.Module):
    """Gives its loss, and has no targets."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return (self.middle(x) - x).square().mean()


def reconstruction() -> Task:
    """A model that computes its own loss, without targets."""
    return Task(
        "reconstruction",
        Reconstruction,
        lambda loss: loss,
        data=lambda split: Data(numbers(96 if split == "train" else 50).inputs),
        batch=8,
    )


class TimeFirst(nn.Module):
    """Gives as many steps of time as a batch has samples, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.steps = nn.Linear(FEATURES, 4), nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.middle(x) + self.steps[:, None])


def time_first() -> Task:
    """Each step of time has another target."""
    return Task(
        "time first",
        TimeFirst,
        lambda outputs: (outputs - torch.arange(8.0)[:, None, None]).square().mean(),
        data=lambda split: Data(numbers(96 if split == "train" else 50).inputs),
        batch=8,
    )


class Similar(nn.Module):
    """Compares each sample with all samples of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(FEATURES, 4), nn.Linear(FEATURES, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) @ self.right(x).T


def contrastive() -> Task:
    """The likeliest partner of each sample is itself."""
    return Task(
        "contrastive",
        Similar,
        lambda outputs: nn.functional.cross_entropy(outputs, torch.arange(len(outputs))),
        data=lambda split: Data(numbers(96 if split == "train" else 50).inputs),
        batch=8,
    )


class Centred(nn.Module):
    """Takes the mean of the batch from each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.head(x)
        return hidden - hidden.mean(0)


def centred() -> Task:
    """A regression on what is left of the batch's mean."""
    return Task(
        "centred",
        Centred,
        lambda outputs, y: nn.functional.mse_loss(outputs.sum(1), y),
        data=lambda split: numbers(96 if split == "train" else 50),
        batch=8,
    )


class TwoHeads(nn.Module):
    """Gives a dict, whose parts both count."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(FEATURES, 12), nn.Linear(12, 3), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        hidden = torch.relu(self.trunk(x))
        return OrderedDict(classes=self.left(hidden), value=self.right(hidden).flatten())


def two_heads() -> Task:
    """Two losses, added up; accuracy is that of the first tensor."""

    def data(split: str) -> Data:
        x, (y,) = numbers(96 if split == "train" else 50).inputs[0], numbers(96 if split == "train" else 50).targets
        return Data((x,), ((y > 0).long(), y))

    def loss(outputs: OrderedDict[str, Tensor], classes: Tensor, value: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs["classes"], classes) + nn.functional.mse_loss(
            outputs["value"], value
        )

    return Task(
        "two heads",
        TwoHeads,
        loss,
        lambda batch: Data(
            (torch.zeros(batch, FEATURES),), (torch.zeros(batch, dtype=torch.int64), torch.zeros(batch))
        ),
        data,
        correct=lambda outputs, classes, value: int((outputs.argmax(1) == classes).sum()),
        batch=8,
    )
