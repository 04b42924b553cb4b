"""What L-BFGS remembers: pairs of a step and the change of the gradient along it, and the direction that they make.

Both forms compute the two-loop recursion: Nocedal and Wright, "Numerical Optimization", 2nd edition, 2006, algorithm
7.4. The two-loop form requests one dot product after the other: two round trips for each pair. The vector-free form
(Chen, Wang and Zhou, "Large-scale L-BFGS using MapReduce", NIPS 2014, algorithm 3) requests all dot products that it
may need at once, and then computes with scalars alone. Either can be of some elements alone: then all dot products are
over these, and H is what the pairs tell of the Hessian's block of these.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .solver import VECTOR_FREE, DirectionSteps
from .vector_ops import AnyOperation, Axpy, Combine, Dot, Drop, Scale

MIN_SHARE = 0.1  # of the curvature of a pair that some elements must have, for it to tell of them


class HistoryPair(NamedTuple):
    """The names of the vectors s (the step) and y (the change of the gradient), and their dot product."""

    step: str
    change: str
    product: float

    @property
    def rho(self) -> float:
        """ρ = 1 / (yᵀ s). Torch multiplies by it, which rounds otherwise than dividing by the product."""
        return 1.0 / self.product

    def has_share(self, whole: "HistoryPair") -> bool:
        """Return whether enough of the curvature of the whole pair is that of the elements that this pair is of."""
        return self.product > MIN_SHARE * whole.product


class LbfgsHistory:
    """The last `size` pairs. form: `VECTOR_FREE` or `TWO_LOOP`."""

    def __init__(self, size: int, form: str) -> None:
        self.pairs: deque[HistoryPair] = deque()
        self.scale = 1.0  # γ of H⁰ = γ I, the initial guess of the inverse Hessian
        self._size, self._form = size, form
        self._dots: dict[frozenset[str], float] = {}  # by the names of both vectors, of the pairs alone
        self._known: set[str] = set()  # names of the vectors whose dot products with all others are in `_dots`

    def add(self, pair: HistoryPair, square: float) -> list[AnyOperation]:
        """Remember a pair and forget the oldest; return the operations that this needs. square: yᵀ y."""
        self.pairs.append(pair)
        self.scale = pair.product / square  # γ = sᵀ y / yᵀ y (equation 7.20)
        if len(self.pairs) <= self._size:
            return []
        return self._forget([self.pairs.popleft()])

    def clear(self) -> list[AnyOperation]:
        """Forget all pairs; return the operations that this needs."""
        pairs, self.scale = list(self.pairs), 1.0
        self.pairs.clear()
        return self._forget(pairs)

    def make_direction(self, out: str, factor: float, base: str, within: str = "") -> DirectionSteps:
        """Return the operations that, in the end, make `out` = H * factor * base, H being the inverse Hessian.

        within: a vector that is not 0 at the elements which alone may change; the Hessian is that of these elements,
        `base` must be 0 elsewhere, and `out` means nothing there.
        """
        make = self._vector_free if self._form == VECTOR_FREE else self._two_loop
        return (yield from make(out, factor, base, within))

    def _vector_free(self, out: str, factor: float, base: str, within: str) -> DirectionSteps:
        """Algorithm 3 of Chen et al.; b_1, ..., b_2m+1 are the s and y of all pairs and `base`."""
        if within:  # it may not be what it was, so no dot product is known
            self._dots, self._known = {}, set()
        unknown = list(self._find_unknown_dots(base))
        answers = (yield [Dot(*names, within) for names in unknown]) if unknown else []
        dots = self._dots | {_key(a, b): value for (a, b), value in zip(unknown, answers, strict=True)}
        self._dots = {key: value for key, value in dots.items() if base not in key}
        self._known = {name for pair in self.pairs for name in (pair.step, pair.change)}
        pairs, scale = self._restrict(dots) if within else (self.pairs, self.scale)
        # "δ_i = 0 if i ≤ 2m, else -1"
        delta = {base: factor}

        def dot(name: str) -> float:
            """Σ_l δ_l b_l · name: the dot product of a vector with p, which is never made."""
            return math.fsum(value * dots[_key(name, other)] for other, value in delta.items())

        alphas = []
        # "for i = k - 1 to k - m"
        for pair in reversed(pairs):
            # "α_i ← s_i · p / s_i · y_i = Σ_l δ_l b_l · b_j / b_j · b_m+j"
            alphas.append(dot(pair.step) * pair.rho)
            # "δ_m+j = δ_m+j - α_i"
            delta[pair.change] = delta.get(pair.change, 0.0) - alphas[-1]
        # "δ_i = (b_m · b_2m / b_2m · b_2m) δ_i for all i"
        delta = {name: value * scale for name, value in delta.items()}
        # "for i = k - m to k - 1"
        for pair in pairs:
            # "β = b_m+j · p / b_j · b_m+j = Σ_l δ_l b_m+j · b_l / b_j · b_m+j"
            beta = dot(pair.change) * pair.rho
            # "δ_j = δ_j + (α_i - β)"
            delta[pair.step] = delta.get(pair.step, 0.0) + alphas.pop() - beta
        # "return direction p = Σ_l δ_l b_l"
        return [Combine(out, [(value, name) for name, value in delta.items()])]

    def _find_unknown_dots(self, base: str) -> Iterator[tuple[str, str]]:
        """Yield the dot products that are needed and not known: of pairs with each other, and of pairs with the base.

        Steps with steps are never needed.
        """
        names = [name for pair in self.pairs for name in (pair.step, pair.change)]
        steps = {pair.step for pair in self.pairs}
        for n, a in enumerate(names):
            yield a, base
            for b in names[: n + 1]:
                if not (a in steps and b in steps) and not (a in self._known and b in self._known):
                    yield a, b

    def _restrict(self, dots: Mapping[frozenset[str], float]) -> tuple[Sequence[HistoryPair], float]:
        """Return the pairs that tell of some elements, and γ, given sᵀ y and yᵀ y over these elements."""
        restricted = [pair._replace(product=dots[_key(pair.step, pair.change)]) for pair in self.pairs]
        kept = [part for part, pair in zip(restricted, self.pairs, strict=True) if part.has_share(pair)]
        return kept, kept[-1].product / dots[_key(kept[-1].change, kept[-1].change)] if kept else self.scale

    def _two_loop(self, out: str, factor: float, base: str, within: str) -> DirectionSteps:
        """Algorithm 7.4 of Nocedal and Wright; `out` is q first and r then."""
        pairs: Sequence[HistoryPair] = self.pairs
        scale = self.scale
        if within and pairs:
            names = [(a, pair.change) for pair in pairs for a in (pair.step, pair.change)]
            answers = yield [Dot(a, b, within) for a, b in names]
            pairs, scale = self._restrict({_key(*key): dot for key, dot in zip(names, answers, strict=True)})
        # "q ← ∇f_k"
        batch: list[AnyOperation] = [Combine(out, [(factor, base)])]
        alphas = []
        # "for i = k - 1, k - 2, ..., k - m"
        for pair in reversed(pairs):
            # "α_i ← ρ_i s_iᵀ q"
            (dot,) = yield [*batch, Dot(pair.step, out, within)]
            alphas.append(dot * pair.rho)
            # "q ← q - α_i y_i"
            batch = [Axpy(out, -alphas[-1], pair.change)]
        # "r ← H_k⁰ q"
        batch.append(Scale(out, scale))
        # "for i = k - m, k - m + 1, ..., k - 1"
        for pair in pairs:
            # "β ← ρ_i y_iᵀ r"
            (dot,) = yield [*batch, Dot(pair.change, out, within)]
            # "r ← r + s_i (α_i - β)"
            batch = [Axpy(out, alphas.pop() - dot * pair.rho, pair.step)]
        # "stop with result H_k ∇f_k = r"
        return batch

    def _forget(self, pairs: Iterable[HistoryPair]) -> list[AnyOperation]:
        names = {name for pair in pairs for name in (pair.step, pair.change)}
        self._known -= names
        self._dots = {key: value for key, value in self._dots.items() if not key & names}
        return [Drop(sorted(names))] if names else []

    def __repr__(self) -> str:
        return f"LbfgsHistory({self._form}, {len(self.pairs)} of {self._size} pairs)"


def _key(a: str, b: str) -> frozenset[str]:
    return frozenset((a, b))
