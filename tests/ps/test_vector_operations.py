"""Operations on vectors: what each does, element by element, and how numbers of parts are put together."""

import math
from fractions import Fraction
from itertools import permutations

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutset.ps.sandblaster.vector_ops import (
    BLOCK,
    Absolute,
    AnyOperation,
    Axpy,
    Combine,
    Copy,
    Dot,
    Drop,
    Evaluate,
    Largest,
    Operation,
    Orthant,
    Project,
    Scale,
    Steepest,
    numbers,
    shares,
)

INF, NAN = math.inf, math.nan
DTYPES = [torch.float32, torch.float64]
KINDS = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])


def drawn(*names, size=1000, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(size, generator=generator, dtype=dtype) for name in names}


def copied(vectors):
    return {name: vector.clone() for name, vector in vectors.items()}


def after(operations, vectors):
    """What operations without numbers make of copies of these vectors."""
    made = copied(vectors)
    assert shares(operations, made) == []
    return made


def same(a, b):
    return math.isnan(a) if math.isnan(b) else a == b


def exact(a, b):
    """The product of two vectors, rounded once."""
    return float(sum(Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)))


# Numbers


@KINDS
def test_dot_is_accumulated_in_float64(dtype):
    vectors = drawn("a", "b", dtype=dtype)
    (found,) = shares([Dot("a", "b")], vectors)
    assert found == pytest.approx(exact(vectors["a"], vectors["b"]), rel=1e-13)
    assert shares([Dot("b", "a")], vectors) == [found]


@KINDS
def test_dot_of_a_vector_with_itself_is_its_square(dtype):
    vectors = drawn("a", dtype=dtype)
    assert shares([Dot("a", "a")], vectors) == [pytest.approx(float(vectors["a"].double().square().sum()), rel=1e-14)]


@KINDS
def test_absolute_and_largest(dtype):
    vectors = drawn("a", dtype=dtype)
    total, largest = shares([Absolute("a"), Largest("a")], vectors)
    assert total == pytest.approx(math.fsum(map(abs, vectors["a"].tolist())), rel=1e-14)
    assert largest == max(map(abs, vectors["a"].tolist()))


def test_sums_of_float32_lose_nothing_to_the_largest_element():
    a = torch.full((BLOCK,), 1e-4)
    a[0] = 1e8
    (found,) = shares([Absolute("a")], {"a": a})
    assert found == pytest.approx(1e8 + (BLOCK - 1) * float(torch.tensor(1e-4)), rel=1e-15)


@pytest.mark.parametrize("operation", [Dot("a", "a"), Absolute("a"), Largest("a")], ids=lambda o: type(o).__name__)
def test_a_part_without_elements_has_no_share(operation):
    assert shares([operation], {"a": torch.empty(0)}) == [0.0]


@pytest.mark.parametrize("operation", [Dot("a", "a"), Absolute("a"), Largest("a")], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize(("odd", "becomes"), [(NAN, NAN), (INF, INF)], ids=["NaN", "inf"])
@pytest.mark.parametrize("place", [0, BLOCK, 2 * BLOCK + 4])
def test_an_element_that_is_not_finite_is_seen_wherever_it_is(operation, odd, becomes, place):
    a = torch.ones(2 * BLOCK + 5)
    a[place] = odd
    (found,) = shares([operation], {"a": a})
    assert same(found, becomes)


def test_the_largest_of_minus_infinity_is_infinite():
    assert shares([Largest("a"), Absolute("a")], {"a": torch.tensor([1.0, -INF])}) == [INF, INF]


# What shares come to


@given(st.lists(st.floats(-1e100, 1e100), max_size=8), st.randoms(use_true_random=False))
def test_shares_in_any_order_have_one_sum_and_it_is_rounded_once(found, chance):
    shuffled = chance.sample(found, len(found))
    assert Dot("a", "b").joined(shuffled) == Dot("a", "b").joined(found) == float(sum(map(Fraction, found)))
    assert Absolute("a").joined(shuffled) == Absolute("a").joined(found)


@given(st.lists(st.floats(0, 1e300), max_size=8))
def test_the_largest_of_shares_is_the_largest(found):
    assert Largest("a").joined(found) == max(found, default=0.0)


@pytest.mark.parametrize("operation", [Dot("a", "b"), Absolute("a"), Largest("a"), Evaluate("a", "b", 0, 1)])
@pytest.mark.parametrize(
    ("found", "becomes"),
    [([NAN], NAN), ([1.0, NAN, 2.0], NAN), ([INF, NAN], NAN), ([INF, 1.0], INF), ([INF, INF], INF), ([1.0], 1.0)],
    ids=str,
)
def test_one_share_that_is_not_finite_is_enough(operation, found, becomes):
    for order in permutations(found):
        assert same(operation.joined(order), becomes)
        assert same(operation.joined(iter(order)), becomes)


@pytest.mark.parametrize(
    ("found", "becomes"), [([-INF, 1e308], -INF), ([-INF, -INF, 3.0], -INF), ([INF, -INF], NAN)], ids=str
)
def test_infinities_keep_their_signs(found, becomes):
    for order in permutations(found):
        assert same(Dot("a", "b").joined(order), becomes)


@pytest.mark.parametrize(("found", "becomes"), [([1e308] * 2, INF), ([-1e308] * 2, -INF)], ids=["above", "below"])
def test_a_sum_beyond_the_largest_number_is_infinite(found, becomes):
    assert Dot("a", "b").joined(found) == becomes


def test_no_shares_come_to_nothing():
    assert [one.joined([]) for one in (Dot("a", "b"), Absolute("a"), Largest("a"))] == [0.0, 0.0, 0.0]


# What changes vectors


@KINDS
def test_scale_and_axpy_change_one_vector(dtype):
    before = drawn("x", "y", dtype=dtype)
    made = after([Scale("x", -0.3), Axpy("y", 1.7, "x")], before)
    scaled = before["x"] * -0.3
    assert torch.equal(made["x"], scaled)
    assert torch.equal(made["y"], torch.add(before["y"], scaled, alpha=1.7))
    assert made["y"].dtype == dtype


@KINDS
def test_combine_adds_its_terms_in_order(dtype):
    before = drawn("a", "b", "c", dtype=dtype)
    made = after([Combine("out", [(0.3, "a"), (-2.0, "b"), (1.0, "c"), (0.1, "a")])], before)
    expected = (before["a"] * 0.3).add(before["b"], alpha=-2.0).add(before["c"], alpha=1.0)
    assert torch.equal(made["out"], expected.add(before["a"], alpha=0.1))
    assert all(torch.equal(made[name], before[name]) for name in before)


@KINDS
@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_combine_may_write_what_it_reads(dtype, factor):
    before = drawn("a", "b", dtype=dtype)
    made = after([Combine("a", [(factor, "b"), (0.5, "a")])], before)
    assert torch.equal(made["a"], (before["b"] * factor).add(before["a"], alpha=0.5))
    assert torch.equal(made["b"], before["b"])


@pytest.mark.parametrize("make", [Combine("out", [(1.0, "a")]), Copy("out", "a")], ids=["combine", "copy"])
def test_what_is_made_shares_no_memory(make):
    before = drawn("a")
    made = after([make, Scale("a", 2.0)], before)
    assert torch.equal(made["out"], before["a"])
    made = after([make, Scale("out", 2.0)], before)
    assert torch.equal(made["a"], before["a"])


def test_drop_lets_go_of_what_is_there():
    assert sorted(after([Drop(["a", "no such", "c"])], drawn("a", "b", "c"))) == ["b"]


VALUES = st.sampled_from([-2.0, -0.5, -0.0, 0.0, 0.5, 2.0]) | st.floats(-3, 3, width=32)


def steepest(at, gradient, l1):
    """Minus equation 4 of Andrew and Gao, of one element."""
    if at != 0:
        return -(gradient + math.copysign(l1, at))
    if gradient + l1 < 0:
        return -(gradient + l1)
    return -(gradient - l1) if gradient - l1 > 0 else 0.0


@KINDS
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=9), st.sampled_from([0.0, 0.25, 0.5, 2.0]))
def test_steepest_is_the_pseudo_gradient(dtype, pairs, l1):
    at, gradient = (torch.tensor(row, dtype=dtype) for row in zip(*pairs, strict=True))
    made = after([Steepest("out", "at", "gradient", l1)], {"at": at, "gradient": gradient})
    expected = [steepest(x, g, l1) for x, g in pairs]
    assert torch.equal(made["out"], torch.tensor(expected, dtype=dtype))
    assert torch.equal(made["at"], at)


@KINDS
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=9))
def test_orthant_and_project(dtype, pairs):
    at, other = (torch.tensor(row, dtype=dtype) for row in zip(*pairs, strict=True))
    vectors = {"at": at, "other": other}
    signs = after([Orthant("out", "at", "other")], vectors)["out"]
    assert signs.tolist() == [(x > 0) - (x < 0) if x else (y > 0) - (y < 0) for x, y in pairs]
    projected = after([Project("at", "other")], vectors)["at"]
    assert projected.tolist() == [x if x * y > 0 else 0.0 for x, y in pairs]


def test_what_is_projected_onto_an_element_that_is_very_small_stays():
    made = after([Project("a", "like")], {"a": torch.tensor([1e-30, -1e-30]), "like": torch.tensor([1e-30, 1e-30])})
    assert made["a"].tolist() == [pytest.approx(1e-30), 0.0]


# Batches


def test_operations_are_carried_out_in_their_order():
    vectors = {"a": torch.tensor([1.0, 2.0])}
    batch = [
        *(Dot("a", "a"), Scale("a", 2.0), Dot("a", "a"), Absolute("a")),
        *(Copy("b", "a"), Axpy("a", 1.0, "b"), Dot("a", "b"), Drop(["a"]), Largest("b")),
    ]
    assert shares(batch, vectors) == [5.0, 20.0, 6.0, 40.0, 4.0]
    assert list(vectors) == ["b"]
    assert [type(one) for one in numbers(batch)] == [Dot, Dot, Absolute, Dot, Largest]


def test_an_empty_batch_gives_nothing():
    assert shares([], drawn("a")) == []
    assert numbers([]) == []


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (Dot("a", "gone"), "gone"),
        (Dot("gone", "a"), "gone"),
        (Absolute("gone"), "gone"),
        (Largest("gone"), "gone"),
        (Scale("gone", 1.0), "gone"),
        (Axpy("gone", 1.0, "a"), "gone"),
        (Axpy("a", 1.0, "gone"), "gone"),
        (Combine("out", [(1.0, "a"), (1.0, "gone")]), "gone"),
        (Copy("out", "gone"), "gone"),
        (Steepest("out", "gone", "a", 0.1), "gone"),
        (Steepest("out", "a", "gone", 0.1), "gone"),
        (Orthant("out", "gone", "a"), "gone"),
        (Orthant("out", "a", "gone"), "gone"),
        (Project("gone", "a"), "gone"),
        (Project("a", "gone"), "gone"),
    ],
    ids=str,
)
def test_a_vector_that_is_not_there_is_named(operation, name):
    before = drawn("a")
    vectors = copied(before)
    with pytest.raises(KeyError) as caught:
        shares([operation], vectors)
    assert caught.value.args == (name,)
    assert list(vectors) == ["a"]
    assert torch.equal(vectors["a"], before["a"])


def test_a_vector_that_was_dropped_is_not_there():
    with pytest.raises(KeyError, match="a"):
        shares([Drop(["a"]), Scale("a", 1.0)], drawn("a"))


def test_every_operation_names_what_it_reads():
    """And can do without anything else."""
    for operation in (
        *(Dot("a", "b"), Absolute("a"), Largest("a"), Scale("a", 2.0), Axpy("a", 1.0, "b"), Copy("c", "a")),
        *(Combine("c", [(1.0, "a"), (2.0, "b")]), Steepest("c", "a", "b", 0.1), Orthant("c", "a", "b")),
        *(Project("a", "b"), Drop(["a"])),
    ):
        vectors = drawn("a", "b")
        shares([operation], {name: vectors[name] for name in operation.reads})
    assert Evaluate("a", "out", 0, 1).reads == ("a",)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
@KINDS
def test_numbers_that_follow_each_other_are_as_if_each_were_alone(size, dtype):
    vectors = drawn("a", "b", size=size, dtype=dtype)
    run = [Dot("a", "b"), Largest("b"), Absolute("a"), Dot("a", "a"), Largest("a")]
    together = shares(run, vectors)
    assert together == [shares([one], vectors)[0] for one in run]
    a, b = vectors["a"].double(), vectors["b"].double()
    scale = float(a.abs() @ b.abs())
    assert together[0] == pytest.approx(float(a @ b), abs=1e-12 * scale)
    assert together[1:3] == [float(b.abs().max()), pytest.approx(float(a.abs().sum()), rel=1e-13)]
    assert together[3:] == [pytest.approx(float(a @ a), rel=1e-13), float(a.abs().max())]


def test_numbers_are_computed_block_by_block(monkeypatch):
    """All of a run for one block, before the next comes into the cache."""
    seen = []

    def spy(kind):
        share = kind.share

        def noted(self, vectors, block):
            seen.append((kind.__name__, block.start))
            return share(self, vectors, block)

        monkeypatch.setattr(kind, "share", noted)

    spy(Dot)
    spy(Absolute)
    shares([Dot("a", "a"), Absolute("a"), Scale("a", 1.0), Dot("a", "a")], drawn("a", size=2 * BLOCK + 1))
    starts = (0, BLOCK, 2 * BLOCK)
    run = [(kind, start) for start in starts for kind in ("Dot", "Absolute")]
    assert seen == run + [("Dot", start) for start in starts]


@given(st.integers(1, 6), st.integers(0, 40), st.integers(0, 2**16))
def test_parts_come_to_the_whole(parts, size, seed):
    whole = drawn("a", "b", size=size, seed=seed)
    batch = [Dot("a", "b"), Combine("a", [(0.5, "a"), (1.0, "b")]), Absolute("a"), Largest("a")]
    cut = [
        dict(zip(whole, pieces, strict=True))
        for pieces in zip(*(v.tensor_split(parts) for v in whole.values()), strict=True)
    ]
    rows = [shares(batch, part) for part in cut]
    joined = [one.joined(row[n] for row in rows) for n, one in enumerate(numbers(batch))]
    assert joined == pytest.approx(shares(batch, whole), rel=1e-12, abs=1e-12)
    assert torch.equal(torch.cat([part["a"] for part in cut]), whole["a"])


def test_every_operation_travels_as_plain_data():
    batch = [
        *(Dot("a", "b"), Absolute("a"), Largest("a"), Scale("a", 0.1), Axpy("y", -1e-17, "x"), Copy("b", "a")),
        *(Combine("c", [(0.1, "a"), (1 / 3, "b")]), Drop(["a", "b"]), Steepest("s", "at", "g", 0.25)),
        *(Orthant("o", "at", "s"), Project("a", "o"), Evaluate("at", "g", 3, 7)),
    ]
    assert {type(one) for one in batch} == set(Operation.__subclasses__())
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(batch)))
    assert msgspec.convert(plain, list[AnyOperation]) == batch


def test_only_what_asks_for_a_number_gives_one():
    giving = {kind for kind in Operation.__subclasses__() if kind.number}
    assert giving == {Dot, Absolute, Largest, Evaluate}
