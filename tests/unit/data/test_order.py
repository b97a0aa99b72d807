"""The global order: a permutation that depends on nothing but (number of samples, seed, epoch)."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.order import GlobalOrder, random_permutation

FIRST_EIGHT = [4, 2, 0, 6, 1, 5, 7, 3]
TEN_THOUSAND = 1726357849


@given(num_samples=st.integers(0, 3000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
def test_every_sample_stands_exactly_once_in_the_order(num_samples: int, seed: int, epoch: int) -> None:
    order = GlobalOrder(num_samples, seed=seed, epoch=epoch)
    assert sorted(order.indices(0, num_samples).tolist()) == list(range(num_samples))


@given(num_samples=st.integers(1, 500), data=st.data())
def test_a_range_of_the_order_is_the_same_however_it_is_asked_for(num_samples: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, num_samples))
    stop = data.draw(st.integers(start, num_samples))
    whole = GlobalOrder(num_samples, seed=7, epoch=3).indices(0, num_samples)
    part = GlobalOrder(num_samples, seed=7, epoch=3).indices(start, stop)
    assert part.tolist() == whole[start:stop].tolist()


def test_seeds_epochs_and_blocks_give_different_orders() -> None:
    orders = {
        random_permutation(100, seed=seed, epoch=epoch, block=block).tobytes()
        for seed in range(4)
        for epoch in range(4)
        for block in range(4)
    }
    assert len(orders) == 64


def test_the_order_is_the_same_in_every_version_of_numpy_and_on_every_machine() -> None:
    """A job that is resumed elsewhere reads on in the same order: these values must never change."""
    assert random_permutation(8, seed=1, epoch=2).tolist() == FIRST_EIGHT
    assert zlib.crc32(random_permutation(10_000, seed=7, epoch=0).astype("<i8").tobytes()) == TEN_THOUSAND


def test_samples_move_about_evenly() -> None:
    """Where sample 0 of ten stands, over 10,000 epochs: each place about 1,000 times (30 is one standard deviation)."""
    places = [int(np.flatnonzero(random_permutation(10, seed=1, epoch=epoch) == 0)[0]) for epoch in range(10_000)]
    assert np.bincount(places, minlength=10).min() > 850
    assert np.bincount(places, minlength=10).max() < 1150


def test_without_shuffling_samples_stand_as_given() -> None:
    assert GlobalOrder(10, seed=1, epoch=5, shuffle=False).indices(3, 6).tolist() == [3, 4, 5]


def test_the_order_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        GlobalOrder(10, seed=1, epoch=0).indices(0, 5)[0] = 1


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11)])
def test_places_outside_of_the_order_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="10 samples"):
        GlobalOrder(10, seed=1, epoch=0).indices(start, stop)
