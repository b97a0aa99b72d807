"""Cutting a batch into microbatches and dealing them out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.shares import assign, cut


@given(num_samples=st.integers(0, 2000), microbatch=st.integers(1, 300))
def test_a_batch_is_cut_in_order_and_only_the_last_piece_may_be_smaller(num_samples: int, microbatch: int) -> None:
    pieces = cut(num_samples, microbatch)
    assert list(itertools.chain(*pieces)) == list(range(num_samples))
    assert all(len(piece) == microbatch for piece in pieces[:-1])
    assert all(1 <= len(piece) <= microbatch for piece in pieces)


@given(num_microbatches=st.integers(0, 500), size=st.integers(1, 60))
def test_every_microbatch_goes_to_one_rank_and_shares_differ_by_at_most_one(num_microbatches: int, size: int) -> None:
    shares = assign(num_microbatches, size)
    assert len(shares) == size
    assert list(itertools.chain(*shares)) == list(range(num_microbatches))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(
    num_microbatches=st.integers(0, 500),
    weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=20).filter(lambda weights: sum(weights) > 1e-3),
)
def test_shares_follow_the_weights_within_one(num_microbatches: int, weights: list[float]) -> None:
    shares = assign(num_microbatches, len(weights), weights)
    assert list(itertools.chain(*shares)) == list(range(num_microbatches))
    for share, weight in zip(shares, weights, strict=True):
        assert abs(len(share) - num_microbatches * weight / sum(weights)) <= 1 + 1e-6


def test_a_rank_of_no_weight_gets_nothing() -> None:
    assert [len(share) for share in assign(10, 3, [1.0, 0.0, 1.0])] == [5, 0, 5]


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_weights_that_make_no_sense_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        assign(4, 2, weights)


def test_empty_groups_and_microbatches_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one member"):
        assign(4, 0)
    with pytest.raises(ValueError, match="at least one sample"):
        cut(4, 0)
