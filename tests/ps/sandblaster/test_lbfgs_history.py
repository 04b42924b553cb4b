"""Both forms make the direction of the inverse Hessian by BFGS, written down as a matrix."""

from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.ps.sandblaster.lbfgs_history import MIN_SHARE, HistoryPair, LbfgsHistory
from cutset.ps.sandblaster.solver import TWO_LOOP, VECTOR_FREE
from cutset.ps.sandblaster.vector_ops import Combine, Dot, Drop, Vectors, carry_out, scalar_operations

FORMS = pytest.mark.parametrize("form", [VECTOR_FREE, TWO_LOOP])
N = 7


class VectorsInParts:
    """Vectors [N] in parts, on which batches are carried out, and the pairs that are remembered as tensors."""

    def __init__(self, history, *, parts=2, seed=0):
        self.history, self.batches = history, []
        self.parts: list[Vectors] = [{} for _ in range(parts)]
        self.pairs, self._numbers = [], count(1)
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self):
        return torch.randn(N, generator=self._generator, dtype=torch.float64)

    def put(self, name, vector):
        for part, piece in zip(self.parts, vector.tensor_split(len(self.parts)), strict=True):
            part[name] = piece.clone()

    def join(self, name):
        return torch.cat([part[name] for part in self.parts])

    def carry_out(self, batch):
        rows = [carry_out(batch, part) for part in self.parts]
        return [one.combine_partials(row[n] for row in rows) for n, one in enumerate(scalar_operations(batch))]

    def remember(self, scale=1.0):
        """Draw a pair of positive product, and add it."""
        step, change = self.draw() * scale, self.draw() * scale
        change = change if step @ change > 0 else -change
        number = next(self._numbers)
        names = f"step-{number}", f"change-{number}"
        self.put(names[0], step)
        self.put(names[1], change)
        self.pairs.append((step, change))
        self.carry_out(self.history.add(HistoryPair(*names, float(step @ change)), float(change @ change)))

    def direction(self, factor, base="base", within=""):
        """The vector that comes of it."""
        request = self.history.make_direction("out", factor, base, within)
        answers = None
        while True:
            try:
                batch = next(request) if answers is None else request.send(answers)
            except StopIteration as stop:
                self.carry_out(stop.value)
                return self.join("out")
            self.batches.append(batch)
            answers = self.carry_out(batch)


def multiply_by_matrix(pairs, vector):
    """Equation 7.16 of Nocedal and Wright, of the last guess y s / y y."""
    one = torch.eye(N, dtype=torch.float64)
    inverse = one * (pairs[-1][0] @ pairs[-1][1]) / (pairs[-1][1] @ pairs[-1][1]) if pairs else one
    for step, change in pairs:
        rho = 1 / (step @ change)
        left = one - rho * torch.outer(step, change)
        inverse = left @ inverse @ left.T + rho * torch.outer(step, step)
    return inverse @ vector


def close(found, expected):
    return float((found - expected).abs().max()) <= 1e-10 * max(1.0, float(expected.abs().max()))


@FORMS
@settings(max_examples=60)
@given(
    pairs=st.integers(0, 9),
    history=st.integers(1, 6),
    parts=st.integers(1, 4),
    factor=st.sampled_from([-1.0, 1.0, 0.3]),
    seed=st.integers(0, 999),
)
def test_the_direction_is_that_of_the_matrix(form, pairs, history, parts, factor, seed):
    """After every pair that is added, and for another vector each time under the same name."""
    made = VectorsInParts(LbfgsHistory(history, form), parts=parts, seed=seed)
    for number in range(pairs + 1):
        base = made.draw()
        made.put("base", base)
        assert close(made.direction(factor), factor * multiply_by_matrix(made.pairs[-history:], base))
        assert torch.equal(made.join("base"), base)
        if number < pairs:
            made.remember()


@FORMS
@settings(max_examples=40)
@given(pairs=st.integers(0, 8), history=st.integers(1, 6), parts=st.integers(1, 4), seed=st.integers(0, 999))
def test_within_some_elements_the_direction_is_that_of_the_pairs_parts_there(form, pairs, history, parts, seed):
    """Other elements each time, and pairs left out that have little of their product, or less than nothing, there."""
    made = VectorsInParts(LbfgsHistory(history, form), parts=parts, seed=seed)
    for number in range(pairs + 1):
        inside = made.draw() > -0.3
        base = made.draw() * inside
        made.put("base", base)
        made.put("mask", inside * -2.0)
        inner = [(step * inside, change * inside) for step, change in made.pairs[-history:]]
        whole = [float(step @ change) for step, change in made.pairs[-history:]]
        kept = [pair for pair, product in zip(inner, whole, strict=True) if pair[0] @ pair[1] > MIN_SHARE * product]
        found = made.direction(-1.0, within="mask") * inside
        if kept or not made.pairs:
            assert close(found, -multiply_by_matrix(kept, base) * inside)
        else:
            step, change = made.pairs[-1]
            assert close(found, -base * (step @ change) / (change @ change))
        assert found @ base < 0 or not base.any()
        if number < pairs:
            made.remember()


@FORMS
def test_directions_need_not_be_made_after_every_pair(form):
    made = VectorsInParts(LbfgsHistory(4, form))
    for asked in (True, False, False, True, False, False, False, False, False, True):
        made.remember()
        if asked:
            base = made.draw()
            made.put("base", base)
            assert close(made.direction(-1.0), -multiply_by_matrix(made.pairs[-4:], base))


@FORMS
def test_a_direction_may_be_made_twice(form):
    made = VectorsInParts(LbfgsHistory(3, form))
    for _ in range(3):
        made.remember()
    for name in ("one", "other"):
        base = made.draw()
        made.put(name, base)
        assert close(made.direction(1.0, name), multiply_by_matrix(made.pairs, base))


@FORMS
def test_without_pairs_the_direction_is_the_vector_itself(form):
    made = VectorsInParts(LbfgsHistory(3, form))
    base = made.draw()
    made.put("base", base)
    assert torch.equal(made.direction(-1.0), -base)
    assert made.batches == []


@FORMS
def test_the_oldest_pair_is_forgotten_and_its_vectors_dropped(form):
    made = VectorsInParts(LbfgsHistory(2, form), parts=1)
    for number in range(1, 6):
        made.remember()
        kept = range(max(1, number - 1), number + 1)
        assert sorted(made.parts[0]) == sorted(f"{kind}-{n}" for kind in ("step", "change") for n in kept)
        assert [pair.step for pair in made.history.pairs] == [f"step-{n}" for n in kept]


@FORMS
def test_clearing_forgets_all_pairs(form):
    made = VectorsInParts(LbfgsHistory(3, form), parts=1)
    for _ in range(3):
        made.remember()
    base = made.draw()
    made.put("base", base)
    made.direction(1.0)
    names = [f"{kind}-{n}" for kind in ("change", "step") for n in (1, 2, 3)]
    asked = made.history.clear()
    assert asked == [Drop(names)]
    assert made.history.clear() == []
    made.carry_out(asked)
    assert torch.equal(made.direction(1.0), base)
    made.pairs.clear()
    made.remember()
    assert close(made.direction(1.0), multiply_by_matrix(made.pairs, base))


@pytest.mark.parametrize("pairs", [1, 2, 5, 9])
def test_round_trips(pairs):
    """One for all products, or two for each pair that is remembered, and one for their products within a vector."""
    for form, trips in ((VECTOR_FREE, 1), (TWO_LOOP, 2 * min(pairs, 5))):
        for within in ("", "mask"):
            made = VectorsInParts(LbfgsHistory(5, form))
            for _ in range(pairs):
                made.remember()
            made.put("base", made.draw())
            made.put("mask", torch.ones(N))
            made.direction(-1.0, within=within)
            assert len(made.batches) == trips + (form == TWO_LOOP and bool(within))


def test_the_vector_free_form_requests_no_product_twice_and_makes_no_vector_on_the_way():
    made, history = VectorsInParts(LbfgsHistory(4, VECTOR_FREE)), 4
    for _ in range(10):
        made.remember()
        made.put("base", made.draw())
        made.direction(-1.0)
    asked = [frozenset((one.a, one.b)) for batch in made.batches for one in batch]
    assert {type(one) for batch in made.batches for one in batch} == {Dot}
    of_pairs = [pair for pair in asked if "base" not in pair]
    assert len(of_pairs) == len(set(of_pairs))
    assert not any(all(name.startswith("step") for name in pair) for pair in asked)
    for batch in made.batches[history:]:
        # With the base 2 for each pair; of the new pair with the others: its change with all of them, its step with
        # their changes, itself not counted twice.
        assert len(batch) == 2 * history + (2 * history) + (history - 1)


def test_the_vector_free_form_makes_its_direction_in_one_operation():
    made = VectorsInParts(LbfgsHistory(3, VECTOR_FREE))
    for _ in range(3):
        made.remember()
    made.put("base", made.draw())
    request = made.history.make_direction("out", -1.0, "base")
    with pytest.raises(StopIteration) as stop:
        request.send(made.carry_out(next(request)))
    (one,) = stop.value.value
    assert isinstance(one, Combine)
    assert sorted(name for _, name in one.terms) == sorted(
        ["base", *(f"{kind}-{n}" for kind in ("step", "change") for n in (1, 2, 3))]
    )


@FORMS
def test_pairs_may_be_of_very_different_sizes(form):
    """Steps become small where a run converges."""
    made = VectorsInParts(LbfgsHistory(6, form), seed=3)
    for number in range(6):
        made.remember(10.0**-number)
    base = made.draw()
    made.put("base", base)
    assert close(made.direction(-1.0), -multiply_by_matrix(made.pairs, base))
