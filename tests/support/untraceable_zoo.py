"""Small models with modules that no trace can follow, and which of them are leaf modules."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from zoo import Case, classes, images, real

from cutset.models.task import Data

WIDTH = 6


@dataclass(frozen=True)
class LeafCase:
    """A case and the globs of its leaf modules."""

    case: Case
    leaf_modules: tuple[str, ...]


class Around(nn.Module):
    """A linear layer, what is to be tried, dropout, and a linear layer."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 4)
        self.inner = nn.ModuleList(inner)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.inner:
            x = F.dropout(block(x), 0.2, self.training)
        return self.last(x)


class Gate(nn.Module):
    """Draws on one way only, and updates statistics on both."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.inner(x))
        if x[0, 0] > 0:
            return x + self.drop(h)
        return x - torch.tanh(h)


class Counted(nn.Module):
    """Draws as often as data says."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.abs().max() * 10) % 4):
            x = x + 0.1 * torch.randn(int(x.abs().sum()) % 5 + 1, 1, WIDTH).to(x).mean(0)
        return x


class Loops(nn.Module):
    """Iterates until it is small enough, through numpy and back."""

    def __init__(self) -> None:
        super().__init__()
        self.shrink = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rounds = 0
        while float(abs(x.detach().numpy()).max()) > 0.5 and rounds < 20:
            x, rounds = 0.7 * torch.tanh(self.shrink(x)), rounds + 1
        return x * (1 + rounds)


class Selects(nn.Module):
    """Computes with so many rows as data says, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x[:, 0] > 0).nonzero()[:, 0]
        return x.index_add(0, chosen, self.expert(x[chosen]))


class Remembers(nn.Module):
    """Assigns a buffer, overwrites another, and keeps something for the length of a call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen = [x]
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.calls += 1
        return self._finish()

    def _finish(self) -> Tensor:
        x = self.seen.pop()
        return (x - self.mean) * self.weight if self.calls.item() % 2 else x * self.weight


class Overwrites(nn.Module):
    """Overwrites its input."""

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2.0) if x.sum() > 0 else x.add_(1.0)
        return torch.relu(x)


class UsesOverwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(5, WIDTH), Overwrites(), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh() + 0.5
        y = self.block(h)
        return self.last(y + h)


class MaybeIdentity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Straight(torch.autograd.Function):
    """Rounds, and lets the gradient through doubled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class OwnGradients(nn.Module):
    """A backward of its own, a hook on a gradient and one on a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.inner.register_full_backward_hook(lambda module, given, got: (given[0] * 3,))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return y + Straight.apply(x)  # type: ignore[no-untyped-call]


class Checkpointed(nn.Module):
    """Computes a part again in backward, dropout included."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if x.isnan().any():
            return x
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[no-any-return]


class Frozen(nn.Module):
    """Keeps its norm in evaluation mode whatever the model does, frozen and unused parameters, and a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.unused = nn.BatchNorm1d(WIDTH), nn.Linear(2, 2)
        self.weight = nn.Parameter(torch.full((WIDTH,), 1.5), requires_grad=False)
        self.plain = {"shift": [torch.linspace(-1, 1, WIDTH, dtype=torch.float64)]}

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x) * self.weight + self.plain["shift"][0].to(x.dtype)
        return x.clamp(min=0) if x.max() > 2 else x


class Normed(nn.Module):
    """Weights that are computed, in both of torch's ways."""

    def __init__(self) -> None:
        super().__init__()
        self.new = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.spectral = nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.new(x) if x.sum() > 0 else self.spectral(x)


class Recurrent(nn.Module):
    """An LSTM with dropout between its layers, of a length that data says."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        steps = 2 + int(x.sum() > 0)
        return self.lstm(x[:, None].expand(-1, steps, -1))[0][:, -1]  # type: ignore[no-any-return]


# Calls of all kinds --------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What a leaf module may return."""

    logits: Tensor
    hidden: tuple[Tensor, ...]
    size: int
    extra: Tensor | None = None


class Asks(nn.Module):
    """Takes keyword arguments only, of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(
        self,
        *,
        hidden: Tensor,
        pairs: tuple[tuple[Tensor, int], ...],
        options: dict[str, Any],
        mask: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Answer:
        x = self.inner(hidden).to(dtype)
        for tensor, factor in pairs:
            x = x + factor * tensor
        if options["mode"] == "tanh" and x.sum() > options["limit"]:
            x = x.tanh()
        return Answer(x if mask is None else x * mask, (hidden.argmax(1), x.sum(1, keepdim=True)), x.shape[1])


class Talks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.last = nn.Embedding(9, WIDTH), Asks(), nn.Linear(WIDTH, 4)

    def forward(self, tokens: Tensor, x: Tensor) -> dict[str, Any]:
        h = self.embed(tokens)
        options = {"mode": "tanh", "limit": float("-inf")}
        one = self.block(hidden=h, pairs=((x, 2), (h, 3)), options=options, dtype=x.dtype)
        mask = (tokens > 3)[:, None]
        two = self.block(hidden=one.logits, pairs=(), options={"mode": "", "limit": 0.0}, mask=mask, dtype=x.dtype)
        picked = two.logits + self.embed(two.hidden[0]) + one.hidden[1] / two.size
        return {"logits": self.last(picked), "none": two.extra}


class Ties(nn.Module):
    """A weight that a leaf module, another one and the trace share; the same module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 4)
        self.one, self.two, self.free = Gate(), Gate(), nn.Linear(WIDTH, WIDTH)
        self.two.inner.weight = self.one.inner.weight
        self.free.weight = self.one.inner.weight
        self.again = self.one

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.again(self.two(self.one(x)) + self.free(x)))


class Teaches(nn.Module):
    """Two leaf modules beside each other, one without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 4)
        self.student, self.teacher = Gate(), Gate()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with torch.no_grad():
            wanted = self.teacher(x)
        return self.last(self.student(x) - F.dropout(wanted, 0.1, self.training) * x)


class Routes(nn.Module):
    """Looks its buffer up: only real values of it are indices."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, WIDTH))
        self.register_buffer("order", torch.arange(WIDTH - 1, -1, -1))

    def forward(self, x: Tensor) -> Tensor:
        assert sorted(self.order.tolist()) == list(range(WIDTH))
        return x * self.table[self.order]


def around(*kinds: Callable[[], nn.Module], exact: bool = True) -> LeafCase:
    return LeafCase(Case(lambda: Around(*(kind() for kind in kinds)), images(8, 5, count=4), exact=exact), ("inner.*",))


LEAF_CASES = {
    "gates": around(Gate, Gate),
    "counted": around(Counted, Gate, Counted),
    "loops": around(Loops),
    "selects": around(Selects, Gate),
    "remembers": around(Remembers, Gate),
    "identity": around(MaybeIdentity, nn.Identity),
    "own_gradients": around(OwnGradients),
    "checkpointed": around(Checkpointed),
    "frozen": around(Frozen),
    "normed": around(Normed, Normed),
    "recurrent": around(Recurrent),
    "routes": around(Routes),
    "overwritten": LeafCase(Case(UsesOverwritten, images(8, 5, count=4)), ("block",)),
    "calls": LeafCase(
        Case(
            Talks,
            lambda: Data((classes(9, 8), real(8, WIDTH)), (classes(4, 8),)),
            lambda output, target: F.cross_entropy(output["logits"], target),
        ),
        ("block",),
    ),
    "ties": LeafCase(Case(Ties, images(8, 5, count=4)), ("one", "t*")),
    "teaches": LeafCase(Case(Teaches, images(8, 5, count=4)), ("student", "teacher")),
}
