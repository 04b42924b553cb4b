"""What a coordinator of scalars asks of vectors that lie on the shards: plain data, and what each does to one part.

Dean et al., "Large Scale Distributed Deep Networks", 2012, section 4.2. A vector has a name and is cut as the
parameters are. An operation that gives a number gives, of each part, a share of it; `joined` makes the number of them.
Every sum is accumulated in float64, whatever the vectors' dtype.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import msgspec
import torch
from torch import Tensor

BLOCK = 1 << 16  # elements that stay in the cache between one number and the next

Vectors = dict[str, Tensor]  # of one part, each [n]
AT = "at"  # the parameters, with which every run begins


class Operation(msgspec.Struct, frozen=True):
    """The base. number: whether it gives one."""

    number: ClassVar[bool] = False
    _largest: ClassVar[bool] = False
    _reads: ClassVar[tuple[str, ...]] = ()  # names of fields

    @property
    def reads(self) -> tuple[str, ...]:
        """The vectors that must be there."""
        return tuple(getattr(self, field) for field in self._reads)

    def share(self, vectors: Vectors, block: slice) -> float:
        """What elements `block` of this part have of the number."""
        raise NotImplementedError

    def act(self, vectors: Vectors) -> None:
        """Change the vectors."""

    def joined(self, shares: Iterable[float]) -> float:
        """The number of all shares, in any order: NaN where one of them is, infinite where it is too large."""
        found = list(shares)
        odd = [share for share in found if not math.isfinite(share)]
        if odd or self._largest:
            return sum(odd) if odd else max(found, default=0.0)
        try:
            return math.fsum(found)
        except OverflowError:
            return sum(found)


class Dot(Operation, frozen=True, tag="dot"):
    """The product of two vectors."""

    number: ClassVar[bool] = True
    _reads = ("a", "b")
    a: str
    b: str

    def share(self, vectors: Vectors, block: slice) -> float:
        a, b = (vectors[name][block].double() for name in (self.a, self.b))
        return float(torch.dot(a, b))


class Absolute(Operation, frozen=True, tag="absolute"):
    """The sum of absolute values."""

    number: ClassVar[bool] = True
    _reads = ("a",)
    a: str

    def share(self, vectors: Vectors, block: slice) -> float:
        return float(vectors[self.a][block].double().abs().sum())


class Largest(Operation, frozen=True, tag="largest"):
    """The largest absolute value."""

    number: ClassVar[bool] = True
    _largest: ClassVar[bool] = True
    _reads = ("a",)
    a: str

    def share(self, vectors: Vectors, block: slice) -> float:
        part = vectors[self.a][block]
        return float(part.abs().max()) if part.numel() else 0.0


class Scale(Operation, frozen=True, tag="scale"):
    """a = by a."""

    _reads = ("a",)
    a: str
    by: float

    def act(self, vectors: Vectors) -> None:
        vectors[self.a].mul_(self.by)


class Axpy(Operation, frozen=True, tag="axpy"):
    """y = y + by x."""

    _reads = ("y", "x")
    y: str
    by: float
    x: str

    def act(self, vectors: Vectors) -> None:
        vectors[self.y].add_(vectors[self.x], alpha=self.by)


class Combine(Operation, frozen=True, tag="combine"):
    """out = the sum of factor x vector over all terms, of which there is at least one; from the first to the last."""

    out: str
    terms: list[tuple[float, str]]

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.terms)

    def act(self, vectors: Vectors) -> None:
        (factor, first), *rest = self.terms
        total = vectors[first].clone() if factor == 1.0 else vectors[first] * factor
        for factor, name in rest:
            total.add_(vectors[name], alpha=factor)
        vectors[self.out] = total


class Copy(Operation, frozen=True, tag="copy"):
    """out = a."""

    _reads = ("a",)
    out: str
    a: str

    def act(self, vectors: Vectors) -> None:
        vectors[self.out] = vectors[self.a].clone()


class Drop(Operation, frozen=True, tag="drop"):
    """These vectors are not needed any more; those that are not there are no fault."""

    names: list[str]

    def act(self, vectors: Vectors) -> None:
        for name in self.names:
            vectors.pop(name, None)


class Steepest(Operation, frozen=True, tag="steepest"):
    """out = minus the pseudo-gradient of f(at) + l1 |at|, where `gradient` is that of f.

    Andrew and Gao, "Scalable Training of L1-Regularized Log-Linear Models", 2007, equation 4.
    """

    _reads = ("at", "gradient")
    out: str
    at: str
    gradient: str
    l1: float

    def act(self, vectors: Vectors) -> None:
        at, gradient = vectors[self.at], vectors[self.gradient]
        left, right = gradient - self.l1, gradient + self.l1  # the derivatives to either side of 0
        at_zero = torch.where(right < 0, right, torch.where(left > 0, left, torch.zeros_like(at)))
        vectors[self.out] = torch.where(at > 0, right, torch.where(at < 0, left, at_zero)).neg_()


class Orthant(Operation, frozen=True, tag="orthant"):
    """out = the signs of `at`, and where that is 0 those of `steepest`: where a step may go (section 3.2 there)."""

    _reads = ("at", "steepest")
    out: str
    at: str
    steepest: str

    def act(self, vectors: Vectors) -> None:
        signs = vectors[self.at].sign()
        vectors[self.out] = torch.where(signs == 0, vectors[self.steepest].sign(), signs)


class Project(Operation, frozen=True, tag="project"):
    """a = 0 where its sign is not that of `like`."""

    _reads = ("a", "like")
    a: str
    like: str

    def act(self, vectors: Vectors) -> None:
        part = vectors[self.a]
        part.masked_fill_(part * vectors[self.like].sign() <= 0, 0.0)


class Evaluate(Operation, frozen=True, tag="evaluate"):
    """out = the mean gradient, at vector `at`, of the samples in portions [first, last); the number is their mean loss.

    Workers compute it: a shard only lets them read `at`, and sums what they send (portion_sums.py).
    """

    number: ClassVar[bool] = True
    _reads = ("at",)
    at: str
    out: str
    first: int
    last: int


AnyOperation = Dot | Absolute | Largest | Scale | Axpy | Combine | Copy | Drop | Steepest | Orthant | Project | Evaluate
Batch = Sequence[AnyOperation]  # one round trip


def shares(batch: Batch, vectors: Vectors) -> list[float]:
    """Carry out operations on one part, in their order; its shares of their numbers. None of them is an `Evaluate`.

    Numbers that follow each other are computed block by block. KeyError names a vector that is not there.
    """
    found: list[float] = []
    for run in _runs(batch):
        for operation in run:
            for name in operation.reads:
                if name not in vectors:
                    raise KeyError(name)
        if not run[0].number:
            for operation in run:
                operation.act(vectors)
            continue
        size = max(vectors[name].numel() for operation in run for name in operation.reads)
        blocks = [slice(start, start + BLOCK) for start in range(0, size, BLOCK)]
        of_blocks = [[operation.share(vectors, block) for operation in run] for block in blocks]
        found += [operation.joined(row[n] for row in of_blocks) for n, operation in enumerate(run)]
    return found


def numbers(batch: Batch) -> list[AnyOperation]:
    """The operations that give one."""
    return [operation for operation in batch if operation.number]


def _runs(batch: Batch) -> Iterator[Batch]:
    """Numbers that follow each other together, everything else alone."""
    run: list[AnyOperation] = []
    for operation in batch:
        if run and not operation.number:
            yield run
            run = []
        if operation.number:
            run.append(operation)
        else:
            yield [operation]
    if run:
        yield run
