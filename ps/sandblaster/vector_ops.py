"""The operations on named vectors that the coordinator requests of the shards: plain data with their implementation.

Dean et al., "Large Scale Distributed Deep Networks", 2012, section 4.2: "a small set of operations (e.g., dot product,
scaling, coefficient-wise addition, multiplication) that can be performed by each parameter server shard independently".
Every vector is cut into slices as the parameters are. For an operation that returns a scalar, each slice contributes a
partial result, and `combine_partials` makes the scalar of them. Every sum is accumulated in float64, whatever the
dtype of the vectors.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import msgspec
import torch
from torch import Tensor

BLOCK = 1 << 16  # elements that stay in the cache from one scalar of a run to the next

Vectors = dict[str, Tensor]  # the named vectors of one slice, each [n]
ITERATE = "iterate"  # the parameters x_k, the only vector that exists when a run begins


class Operation(msgspec.Struct, frozen=True):
    """The base class of all operations."""

    returns_scalar: ClassVar[bool] = False
    _takes_maximum: ClassVar[bool] = False  # partial results are combined by their maximum, not by their sum
    _reads: ClassVar[tuple[str, ...]] = ()  # names of the fields that name a vector to read

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the vectors that must exist."""
        return tuple(getattr(self, field) for field in self._reads)

    def reduce_block(self, vectors: Vectors, block: slice) -> float:
        """Return the partial result of elements `block` of this slice."""
        raise NotImplementedError

    def apply(self, vectors: Vectors) -> None:
        """Change the vectors of one slice in place, or add vectors."""

    def combine_partials(self, partials: Iterable[float]) -> float:
        """Combine partial results, in any order, into the scalar.

        The scalar is NaN if one of them is NaN, and infinite if the sum is too large for a float.
        """
        values = list(partials)
        not_finite = [value for value in values if not math.isfinite(value)]
        if not_finite or self._takes_maximum:
            return sum(not_finite) if not_finite else max(values, default=0.0)
        try:
            return math.fsum(values)
        except OverflowError:
            return sum(values)


class Dot(Operation, frozen=True, tag="dot"):
    """The dot product of two vectors; over the elements where the vector `within` is not 0, if there is one."""

    returns_scalar: ClassVar[bool] = True
    a: str
    b: str
    within: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.a, self.b, self.within) if self.within else (self.a, self.b)

    def reduce_block(self, vectors: Vectors, block: slice) -> float:
        a, b = (vectors[name][block].double() for name in (self.a, self.b))
        if self.within:
            a = a.masked_fill(vectors[self.within][block] == 0, 0.0)
        return float(torch.dot(a, b))


class L1Norm(Operation, frozen=True, tag="l1_norm"):
    """The sum of the absolute values of a vector."""

    returns_scalar: ClassVar[bool] = True
    _reads = ("a",)
    a: str

    def reduce_block(self, vectors: Vectors, block: slice) -> float:
        return float(vectors[self.a][block].double().abs().sum())


class MaxNorm(Operation, frozen=True, tag="max_norm"):
    """The largest absolute value of a vector."""

    returns_scalar: ClassVar[bool] = True
    _takes_maximum: ClassVar[bool] = True
    _reads = ("a",)
    a: str

    def reduce_block(self, vectors: Vectors, block: slice) -> float:
        part = vectors[self.a][block]
        return float(part.abs().max()) if part.numel() else 0.0


class Scale(Operation, frozen=True, tag="scale"):
    """a = by * a."""

    _reads = ("a",)
    a: str
    by: float

    def apply(self, vectors: Vectors) -> None:
        vectors[self.a].mul_(self.by)


class Axpy(Operation, frozen=True, tag="axpy"):
    """y = y + by * x."""

    _reads = ("y", "x")
    y: str
    by: float
    x: str

    def apply(self, vectors: Vectors) -> None:
        vectors[self.y].add_(vectors[self.x], alpha=self.by)


class Combine(Operation, frozen=True, tag="combine"):
    """out = the sum of factor * vector over all terms, added up in their order; there is at least one term."""

    out: str
    terms: list[tuple[float, str]]

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.terms)

    def apply(self, vectors: Vectors) -> None:
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

    def apply(self, vectors: Vectors) -> None:
        vectors[self.out] = vectors[self.a].clone()


class Drop(Operation, frozen=True, tag="drop"):
    """Delete these vectors; names of vectors that do not exist are ignored."""

    names: list[str]

    def apply(self, vectors: Vectors) -> None:
        for name in self.names:
            vectors.pop(name, None)


class SteepestDescent(Operation, frozen=True, tag="steepest_descent"):
    """out = minus the pseudo-gradient of f(at) + l1 |at|, where `gradient` is the gradient of f at `at`.

    Andrew and Gao, "Scalable Training of L1-Regularized Log-Linear Models", ICML 2007, equation 4.
    """

    _reads = ("at", "gradient")
    out: str
    at: str
    gradient: str
    l1: float

    def apply(self, vectors: Vectors) -> None:
        at, gradient = vectors[self.at], vectors[self.gradient]
        # ∂-f = ∂l/∂x - l1 and ∂+f = ∂l/∂x + l1 are the left and the right derivative at 0.
        left, right = gradient - self.l1, gradient + self.l1
        # "⋄f = ∂-f if ∂-f > 0; ∂+f if ∂+f < 0; 0 otherwise"
        at_zero = torch.where(right < 0, right, torch.where(left > 0, left, torch.zeros_like(at)))
        vectors[self.out] = torch.where(at > 0, right, torch.where(at < 0, left, at_zero)).neg_()


class ChooseOrthant(Operation, frozen=True, tag="choose_orthant"):
    """out = the orthant ξ that a step must stay in (section 3.2 there): sign(at), sign(steepest) where `at` is 0."""

    _reads = ("at", "steepest")
    out: str
    at: str
    steepest: str

    def apply(self, vectors: Vectors) -> None:
        signs = vectors[self.at].sign()
        vectors[self.out] = torch.where(signs == 0, vectors[self.steepest].sign(), signs)


class ProjectOntoOrthant(Operation, frozen=True, tag="project_onto_orthant"):
    """a = π(a; like): 0 in every element whose sign is not that of `like` (section 3.2 there)."""

    _reads = ("a", "like")
    a: str
    like: str

    def apply(self, vectors: Vectors) -> None:
        part = vectors[self.a]
        part.masked_fill_(part * vectors[self.like].sign() <= 0, 0.0)


class Evaluate(Operation, frozen=True, tag="evaluate"):
    """out = the mean gradient, at vector `at`, of the samples in portions [first, last); returns their mean loss.

    Replicas compute it: a shard lets them read `at` and sums the gradients that they send (tree_sum.py). The
    coordinator puts in the loss, as shards know none.
    """

    returns_scalar: ClassVar[bool] = True
    _reads = ("at",)
    at: str
    out: str
    first: int
    last: int


AnyOperation = (
    Dot
    | L1Norm
    | MaxNorm
    | Scale
    | Axpy
    | Combine
    | Copy
    | Drop
    | SteepestDescent
    | ChooseOrthant
    | ProjectOntoOrthant
    | Evaluate
)
Batch = Sequence[AnyOperation]  # the operations of one round trip between coordinator and shards


def carry_out(batch: Batch, vectors: Vectors) -> list[float]:
    """Carry out operations on one slice, in their order; return its partial results of their scalars.

    None of the operations may be an `Evaluate`. Scalars that follow each other are computed block by block, so that
    each element is loaded into the cache once. Raises KeyError, which names the vector, if a vector does not exist.
    """
    partials: list[float] = []
    for run in _split_runs(batch):
        for operation in run:
            for name in operation.reads:
                if name not in vectors:
                    raise KeyError(name)
        if not run[0].returns_scalar:
            for operation in run:
                operation.apply(vectors)
            continue
        size = max(vectors[name].numel() for operation in run for name in operation.reads)
        blocks = [slice(start, start + BLOCK) for start in range(0, size, BLOCK)]
        of_blocks = [[operation.reduce_block(vectors, block) for operation in run] for block in blocks]
        partials += [operation.combine_partials(row[n] for row in of_blocks) for n, operation in enumerate(run)]
    return partials


def scalar_operations(batch: Batch) -> list[AnyOperation]:
    """Return the operations of a batch that return a scalar."""
    return [operation for operation in batch if operation.returns_scalar]


def _split_runs(batch: Batch) -> Iterator[Batch]:
    """Yield scalar operations that follow each other as one run, and every other operation alone."""
    run: list[AnyOperation] = []
    for operation in batch:
        if run and not operation.returns_scalar:
            yield run
            run = []
        if operation.returns_scalar:
            run.append(operation)
        else:
            yield [operation]
    if run:
        yield run
