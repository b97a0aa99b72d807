"""The fixed tree: the same bits, however the leaves are dealt out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.communication.collectives.tree import TreeSum, check_cover, cover, finish, parent, split
from paceline.errors import RanksDisagree


def leaves(count: int, length: int = 5) -> list[np.ndarray]:
    random = np.random.default_rng(count)
    return [
        (random.standard_normal(length) * 10.0 ** random.integers(-8, 9, length)).astype(np.float32)
        for _ in range(count)
    ]


def reference(values: list[np.ndarray]) -> np.ndarray:
    """The definition, word by word."""
    if len(values) == 1:
        return values[0]
    largest = max(2**k for k in range(20) if 2**k < len(values))
    return reference(values[:largest]) + reference(values[largest:])


@given(st.integers(1, 70), st.data())
def test_the_bits_do_not_depend_on_who_holds_which_leaves(num_leaves: int, data: st.DataObject) -> None:
    values = leaves(num_leaves)
    cuts = sorted(data.draw(st.lists(st.integers(0, num_leaves), max_size=6)))
    partials = {}
    for first, last in zip([0, *cuts], [*cuts, num_leaves], strict=True):
        tree = TreeSum(num_leaves, first)
        for value in values[first:last]:
            tree.add(value.copy(), owned=True) if data.draw(st.booleans()) else tree.add(value)
        assert sorted(tree.partials()) == cover(first, last, num_leaves)
        partials |= tree.partials()
    out = np.empty(5, np.float32)
    finish(partials, num_leaves, out)
    assert out.tobytes() == reference(values).tobytes()


@given(st.integers(1, 200), st.data())
def test_a_cover_is_whole_and_small(num_leaves: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, num_leaves))
    last = data.draw(st.integers(first, num_leaves))
    nodes = cover(first, last, num_leaves)
    held = [leaf for node in nodes for leaf in range(*node)]
    assert held == list(range(first, last))
    assert len(nodes) <= 2 * num_leaves.bit_length()
    # No two of them could be one.
    assert all(parent(one, num_leaves) != (one[0], two[1]) for one, two in itertools.pairwise(nodes))


@given(st.integers(0, 50), st.integers(2, 100))
def test_a_left_child_has_the_largest_power_of_two_below(first: int, count: int) -> None:
    left = split(first, first + count) - first
    assert left < count <= 2 * left
    assert left & (left - 1) == 0


def test_few_buffers_are_alive_at_any_time() -> None:
    tree = TreeSum(1000)
    for value in leaves(1000, length=1):
        tree.add(value)
        assert len(tree.partials()) <= 10


def test_a_leaf_is_only_read() -> None:
    values = leaves(8)
    for value in values:
        value.flags.writeable = False
    tree = TreeSum(8)
    for value in values:
        tree.add(value)
    assert list(tree.partials()) == [(0, 8)]


def test_a_leaf_too_many_is_an_error() -> None:
    tree = TreeSum(1)
    tree.add(np.zeros(1))
    with pytest.raises(ValueError, match="leaf 1 of 1"):
        tree.add(np.zeros(1))


@pytest.mark.parametrize(
    "nodes",
    [[[(0, 2)], [(3, 4)]], [[(0, 2)], [(1, 2), (2, 4)]], [[(0, 1), (1, 3), (3, 4)]], [[], []], [[(0, 4)], [(4, 5)]]],
)
def test_leaves_that_are_missing_or_held_twice_are_shown_by_rank(nodes: list[list[tuple[int, int]]]) -> None:
    with pytest.raises(RanksDisagree, match="rank 0"):
        check_cover(nodes, 4)


def test_a_rank_may_hold_no_leaves() -> None:
    check_cover([[], [(0, 4)], []], 4)
