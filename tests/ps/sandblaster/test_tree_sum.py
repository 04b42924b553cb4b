"""Sums of portions have the same bits, whoever has added up what and in whatever order it comes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutset.ps.sandblaster.tree_sum import TreeSum, leaves_under

SIZE = 3


def drawn(count, seed=0):
    """Leaves whose sum depends on its order: of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, SIZE, generator=generator) * 10.0 ** torch.randint(-3, 4, (count, 1), generator=generator)


def tree(parts):
    """The sum of [n, SIZE] by the definition: neighbours, then neighbours of those, until one is left."""
    row = list(parts)
    while len(row) > 1:
        row = [row[i] + row[i + 1] if i + 1 < len(row) else row[i] for i in range(0, len(row), 2)]
    return row[0]


def node(parts, level, index):
    """A node, as whoever has its leaves adds it up."""
    those = leaves_under(level, index, len(parts))
    own = TreeSum(len(those))
    for position, leaf in enumerate(those):
        own.add(0, position, parts[leaf])
    return own.total


@st.composite
def deliveries(draw):
    """Leaves, and nodes in any order that together have them all: a partition, with some nodes and parts of them."""
    count = draw(st.integers(1, 70))
    root = (count - 1).bit_length()
    partition, undivided = [], [(root, 0)]
    while undivided:
        level, index = undivided.pop()
        if level and draw(st.booleans()):
            undivided += [(level - 1, i) for i in (2 * index, 2 * index + 1) if i << (level - 1) < count]
        else:
            partition.append((level, index))
    there = [(level, index) for level in range(root + 1) for index in range(-(-count // (1 << level)))]
    extra = draw(st.lists(st.sampled_from(there), max_size=12))
    repeats = draw(st.lists(st.sampled_from(partition), max_size=4))
    return drawn(count, draw(st.integers(0, 99))), draw(st.permutations([*partition, *extra, *repeats]))


@given(deliveries())
def test_the_bits_are_those_of_leaves_one_by_one(case):
    parts, nodes = case
    count, made, covered = len(parts), TreeSum(len(parts)), set()
    for level, index in nodes:
        made.add(level, index, node(parts, level, index))
        covered |= set(leaves_under(level, index, count))
        assert (made.total is not None) == (len(covered) == count)
    assert torch.equal(made.total, tree(parts))


@given(st.integers(1, 200), st.randoms(use_true_random=False))
@pytest.mark.run
def test_leaves_in_any_order_have_the_bits_of_the_tree(count, chance):
    parts, made = drawn(count), TreeSum(count)
    for leaf in chance.sample(range(count), count):
        assert made.total is None
        made.add(0, leaf, parts[leaf])
    assert torch.equal(made.total, tree(parts))


def test_the_order_matters_where_nobody_minds_it():
    parts = drawn(64)
    assert not torch.equal(sum(parts), tree(parts))


@given(deliveries())
def test_what_was_given_is_not_changed(case):
    parts, nodes = case
    made = TreeSum(len(parts))
    given_ = [node(parts, *one) for one in nodes]
    before = [tensor.clone() for tensor in given_]
    for one, tensor in zip(nodes, given_, strict=True):
        made.add(*one, tensor)
    assert all(torch.equal(a, b) for a, b in zip(given_, before, strict=True))


@given(deliveries())
def test_what_comes_after_all_is_there_changes_nothing(case):
    parts, nodes = case
    made = TreeSum(len(parts))
    for one in nodes:
        made.add(*one, node(parts, *one))
    total = made.total
    for level, index in nodes:
        made.add(level, index, torch.full((SIZE,), torch.nan))
    assert made.total is total


def test_a_leaf_that_is_part_of_what_is_there_does_not_count_again():
    made, one = TreeSum(4), torch.ones(1)
    made.add(1, 0, 2 * one)
    made.add(0, 1, torch.full((1,), torch.nan))
    made.add(1, 1, 2 * one)
    assert made.total.tolist() == [4]


def test_a_node_takes_the_place_of_its_parts():
    made, one = TreeSum(8), torch.ones(1)
    for leaf in (0, 2, 3):
        made.add(0, leaf, one)
    made.add(2, 0, 4 * one)
    assert made.total is None
    made.add(0, 1, one)
    assert made.total is None
    made.add(2, 1, 4 * one)
    assert made.total.tolist() == [8]


def test_no_more_is_kept_than_is_needed():
    """Of 1024 leaves one by one, as many tensors as the count so far has ones in binary."""
    made = TreeSum(1024)
    for leaf in range(1023):
        made.add(0, leaf, torch.ones(1))
        assert repr(made).count("(") - 1 == (leaf + 1).bit_count()


def test_one_leaf_is_its_own_sum():
    made, part = TreeSum(1), drawn(1)[0]
    assert made.total is None
    made.add(0, 0, part)
    assert made.total is part


def test_not_a_number_is_a_number_like_others():
    made = TreeSum(2)
    made.add(0, 0, torch.tensor([torch.nan, 1.0]))
    made.add(0, 1, torch.tensor([1.0, torch.inf]))
    assert made.total.isnan().tolist() == [True, False]
    assert made.total[1] == torch.inf


@pytest.mark.parametrize(
    ("count", "level", "index"),
    [
        *((4, 3, 0), (4, -1, 0), (4, 0, 4), (4, 0, -1), (4, 1, 2), (4, 2, 1), (5, 1, 3), (5, 4, 0)),
        *((1, 1, 0), (1, 0, 1), (0, 0, 0)),
    ],
)
def test_a_node_that_is_not_there_is_refused(count, level, index):
    made = TreeSum(count)
    with pytest.raises(ValueError, match=f"node {index} of level {level}, of {count} leaves"):
        made.add(level, index, torch.ones(1))
    assert made.total is None


@given(st.integers(1, 100))
def test_nodes_of_a_level_share_out_the_leaves(count):
    for level in range(count.bit_length() + 1):
        nodes = [leaves_under(level, index, count) for index in range(-(-count // (1 << level)))]
        assert [leaf for those in nodes for leaf in those] == list(range(count))
        assert all(len(those) == 1 << level for those in nodes[:-1])
        assert nodes[-1]
