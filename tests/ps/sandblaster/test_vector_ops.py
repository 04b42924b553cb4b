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
    AnyOperation,
    Axpy,
    ChooseOrthant,
    Combine,
    Copy,
    Dot,
    Drop,
    Evaluate,
    L1Norm,
    MaxNorm,
    Operation,
    ProjectOntoOrthant,
    Scale,
    SteepestDescent,
    carry_out,
    scalar_operations,
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
    assert carry_out(operations, made) == []
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
    (found,) = carry_out([Dot("a", "b")], vectors)
    assert found == pytest.approx(exact(vectors["a"], vectors["b"]), rel=1e-13)
    assert carry_out([Dot("b", "a")], vectors) == [found]


@KINDS
def test_dot_of_a_vector_with_itself_is_its_square(dtype):
    vectors = drawn("a", dtype=dtype)
    assert carry_out([Dot("a", "a")], vectors) == [
        pytest.approx(float(vectors["a"].double().square().sum()), rel=1e-14)
    ]


@KINDS
def test_dot_within_a_vector_is_over_its_elements_that_are_not_zero(dtype):
    vectors = drawn("a", "b", dtype=dtype, size=BLOCK + 9)
    vectors["mask"] = drawn("mask", size=BLOCK + 9, seed=1)["mask"].sign() * (torch.arange(BLOCK + 9) % 3)
    inside = vectors["mask"] != 0
    (found,) = carry_out([Dot("a", "b", "mask")], vectors)
    assert found == pytest.approx(exact(vectors["a"][inside], vectors["b"][inside]), rel=1e-11)
    with pytest.raises(KeyError, match="other"):
        carry_out([Dot("a", "b", "other")], vectors)


@KINDS
def test_l1_norm_and_max_norm(dtype):
    vectors = drawn("a", dtype=dtype)
    total, largest = carry_out([L1Norm("a"), MaxNorm("a")], vectors)
    assert total == pytest.approx(math.fsum(map(abs, vectors["a"].tolist())), rel=1e-14)
    assert largest == max(map(abs, vectors["a"].tolist()))


def test_sums_of_float32_lose_nothing_to_the_largest_element():
    a = torch.full((BLOCK,), 1e-4)
    a[0] = 1e8
    (found,) = carry_out([L1Norm("a")], {"a": a})
    assert found == pytest.approx(1e8 + (BLOCK - 1) * float(torch.tensor(1e-4)), rel=1e-15)


@pytest.mark.parametrize("operation", [Dot("a", "a"), L1Norm("a"), MaxNorm("a")], ids=lambda o: type(o).__name__)
def test_an_empty_slice_contributes_nothing(operation):
    assert carry_out([operation], {"a": torch.empty(0)}) == [0.0]


@pytest.mark.parametrize("operation", [Dot("a", "a"), L1Norm("a"), MaxNorm("a")], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize(("odd", "becomes"), [(NAN, NAN), (INF, INF)], ids=["NaN", "inf"])
@pytest.mark.parametrize("place", [0, BLOCK, 2 * BLOCK + 4])
def test_an_element_that_is_not_finite_is_seen_wherever_it_is(operation, odd, becomes, place):
    a = torch.ones(2 * BLOCK + 5)
    a[place] = odd
    (found,) = carry_out([operation], {"a": a})
    assert same(found, becomes)


def test_the_largest_of_minus_infinity_is_infinite():
    assert carry_out([MaxNorm("a"), L1Norm("a")], {"a": torch.tensor([1.0, -INF])}) == [INF, INF]


# What shares come to


@given(st.lists(st.floats(-1e100, 1e100), max_size=8), st.randoms(use_true_random=False))
def test_partials_in_any_order_have_one_sum_rounded_once(found, chance):
    shuffled = chance.sample(found, len(found))
    assert (
        Dot("a", "b").combine_partials(shuffled)
        == Dot("a", "b").combine_partials(found)
        == float(sum(map(Fraction, found)))
    )
    assert L1Norm("a").combine_partials(shuffled) == L1Norm("a").combine_partials(found)


@given(st.lists(st.floats(0, 1e300), max_size=8))
def test_max_norms_are_combined_by_their_maximum(found):
    assert MaxNorm("a").combine_partials(found) == max(found, default=0.0)


@pytest.mark.parametrize("operation", [Dot("a", "b"), L1Norm("a"), MaxNorm("a"), Evaluate("a", "b", 0, 1)])
@pytest.mark.parametrize(
    ("found", "becomes"),
    [([NAN], NAN), ([1.0, NAN, 2.0], NAN), ([INF, NAN], NAN), ([INF, 1.0], INF), ([INF, INF], INF), ([1.0], 1.0)],
    ids=str,
)
def test_one_partial_that_is_not_finite_decides(operation, found, becomes):
    for order in permutations(found):
        assert same(operation.combine_partials(order), becomes)
        assert same(operation.combine_partials(iter(order)), becomes)


@pytest.mark.parametrize(
    ("found", "becomes"), [([-INF, 1e308], -INF), ([-INF, -INF, 3.0], -INF), ([INF, -INF], NAN)], ids=str
)
def test_infinities_keep_their_signs(found, becomes):
    for order in permutations(found):
        assert same(Dot("a", "b").combine_partials(order), becomes)


@pytest.mark.parametrize(("found", "becomes"), [([1e308] * 2, INF), ([-1e308] * 2, -INF)], ids=["above", "below"])
def test_a_sum_beyond_the_largest_number_is_infinite(found, becomes):
    assert Dot("a", "b").combine_partials(found) == becomes


def test_no_partials_make_zero():
    assert [one.combine_partials([]) for one in (Dot("a", "b"), L1Norm("a"), MaxNorm("a"))] == [0.0, 0.0, 0.0]


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
def test_new_vectors_share_no_memory(make):
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
    made = after([SteepestDescent("out", "at", "gradient", l1)], {"at": at, "gradient": gradient})
    expected = [steepest(x, g, l1) for x, g in pairs]
    assert torch.equal(made["out"], torch.tensor(expected, dtype=dtype))
    assert torch.equal(made["at"], at)


@KINDS
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=9))
def test_choosing_an_orthant_and_projecting_onto_it(dtype, pairs):
    at, other = (torch.tensor(row, dtype=dtype) for row in zip(*pairs, strict=True))
    vectors = {"at": at, "other": other}
    signs = after([ChooseOrthant("out", "at", "other")], vectors)["out"]
    assert signs.tolist() == [(x > 0) - (x < 0) if x else (y > 0) - (y < 0) for x, y in pairs]
    projected = after([ProjectOntoOrthant("at", "other")], vectors)["at"]
    assert projected.tolist() == [x if x * y > 0 else 0.0 for x, y in pairs]


def test_projection_onto_a_tiny_element_keeps_the_sign():
    made = after(
        [ProjectOntoOrthant("a", "like")], {"a": torch.tensor([1e-30, -1e-30]), "like": torch.tensor([1e-30, 1e-30])}
    )
    assert made["a"].tolist() == [pytest.approx(1e-30), 0.0]


# Batches


def test_operations_are_carried_out_in_their_order():
    vectors = {"a": torch.tensor([1.0, 2.0])}
    batch = [
        *(Dot("a", "a"), Scale("a", 2.0), Dot("a", "a"), L1Norm("a")),
        *(Copy("b", "a"), Axpy("a", 1.0, "b"), Dot("a", "b"), Drop(["a"]), MaxNorm("b")),
    ]
    assert carry_out(batch, vectors) == [5.0, 20.0, 6.0, 40.0, 4.0]
    assert list(vectors) == ["b"]
    assert [type(one) for one in scalar_operations(batch)] == [Dot, Dot, L1Norm, Dot, MaxNorm]


def test_an_empty_batch_returns_nothing():
    assert carry_out([], drawn("a")) == []
    assert scalar_operations([]) == []


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (Dot("a", "gone"), "gone"),
        (Dot("gone", "a"), "gone"),
        (L1Norm("gone"), "gone"),
        (MaxNorm("gone"), "gone"),
        (Scale("gone", 1.0), "gone"),
        (Axpy("gone", 1.0, "a"), "gone"),
        (Axpy("a", 1.0, "gone"), "gone"),
        (Combine("out", [(1.0, "a"), (1.0, "gone")]), "gone"),
        (Copy("out", "gone"), "gone"),
        (SteepestDescent("out", "gone", "a", 0.1), "gone"),
        (SteepestDescent("out", "a", "gone", 0.1), "gone"),
        (ChooseOrthant("out", "gone", "a"), "gone"),
        (ChooseOrthant("out", "a", "gone"), "gone"),
        (ProjectOntoOrthant("gone", "a"), "gone"),
        (ProjectOntoOrthant("a", "gone"), "gone"),
    ],
    ids=str,
)
def test_a_missing_vector_is_named(operation, name):
    before = drawn("a")
    vectors = copied(before)
    with pytest.raises(KeyError) as caught:
        carry_out([operation], vectors)
    assert caught.value.args == (name,)
    assert list(vectors) == ["a"]
    assert torch.equal(vectors["a"], before["a"])


def test_a_dropped_vector_is_missing():
    with pytest.raises(KeyError, match="a"):
        carry_out([Drop(["a"]), Scale("a", 1.0)], drawn("a"))


def test_every_operation_names_what_it_reads():
    """And can do without anything else."""
    for operation in (
        *(Dot("a", "b"), L1Norm("a"), MaxNorm("a"), Scale("a", 2.0), Axpy("a", 1.0, "b"), Copy("c", "a")),
        *(Combine("c", [(1.0, "a"), (2.0, "b")]), SteepestDescent("c", "a", "b", 0.1), ChooseOrthant("c", "a", "b")),
        *(ProjectOntoOrthant("a", "b"), Drop(["a"])),
    ):
        vectors = drawn("a", "b")
        carry_out([operation], {name: vectors[name] for name in operation.reads})
    assert Evaluate("a", "out", 0, 1).reads == ("a",)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
@KINDS
def test_scalars_of_a_run_equal_those_computed_alone(size, dtype):
    vectors = drawn("a", "b", size=size, dtype=dtype)
    run = [Dot("a", "b"), MaxNorm("b"), L1Norm("a"), Dot("a", "a"), MaxNorm("a")]
    together = carry_out(run, vectors)
    assert together == [carry_out([one], vectors)[0] for one in run]
    a, b = vectors["a"].double(), vectors["b"].double()
    scale = float(a.abs() @ b.abs())
    assert together[0] == pytest.approx(float(a @ b), abs=1e-12 * scale)
    assert together[1:3] == [float(b.abs().max()), pytest.approx(float(a.abs().sum()), rel=1e-13)]
    assert together[3:] == [pytest.approx(float(a @ a), rel=1e-13), float(a.abs().max())]


def test_scalars_are_computed_block_by_block(monkeypatch):
    """All of a run for one block, before the next comes into the cache."""
    seen = []

    def spy(kind):
        reduce_block = kind.reduce_block

        def record(self, vectors, block):
            seen.append((kind.__name__, block.start))
            return reduce_block(self, vectors, block)

        monkeypatch.setattr(kind, "reduce_block", record)

    spy(Dot)
    spy(L1Norm)
    carry_out([Dot("a", "a"), L1Norm("a"), Scale("a", 1.0), Dot("a", "a")], drawn("a", size=2 * BLOCK + 1))
    starts = (0, BLOCK, 2 * BLOCK)
    run = [(kind, start) for start in starts for kind in ("Dot", "L1Norm")]
    assert seen == run + [("Dot", start) for start in starts]


@given(st.integers(1, 6), st.integers(0, 40), st.integers(0, 2**16))
def test_slices_add_up_to_the_whole_vector(parts, size, seed):
    whole = drawn("a", "b", size=size, seed=seed)
    batch = [Dot("a", "b"), Combine("a", [(0.5, "a"), (1.0, "b")]), L1Norm("a"), MaxNorm("a")]
    cut = [
        dict(zip(whole, pieces, strict=True))
        for pieces in zip(*(v.tensor_split(parts) for v in whole.values()), strict=True)
    ]
    rows = [carry_out(batch, part) for part in cut]
    combined = [one.combine_partials(row[n] for row in rows) for n, one in enumerate(scalar_operations(batch))]
    assert combined == pytest.approx(carry_out(batch, whole), rel=1e-12, abs=1e-12)
    assert torch.equal(torch.cat([part["a"] for part in cut]), whole["a"])


def test_every_operation_travels_as_plain_data():
    batch = [
        *(Dot("a", "b"), L1Norm("a"), MaxNorm("a"), Scale("a", 0.1), Axpy("y", -1e-17, "x"), Copy("b", "a")),
        *(Combine("c", [(0.1, "a"), (1 / 3, "b")]), Drop(["a", "b"]), SteepestDescent("s", "at", "g", 0.25)),
        *(ChooseOrthant("o", "at", "s"), ProjectOntoOrthant("a", "o"), Evaluate("at", "g", 3, 7)),
    ]
    assert {type(one) for one in batch} == set(Operation.__subclasses__())
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(batch)))
    assert msgspec.convert(plain, list[AnyOperation]) == batch


def test_which_operations_return_a_scalar():
    giving = {kind for kind in Operation.__subclasses__() if kind.returns_scalar}
    assert giving == {Dot, L1Norm, MaxNorm, Evaluate}
