"""Data in memory: checks at the door, rows without a copy, and what tells two data sets apart."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.data.sources.arrays import ArraySource, as_slice
from paceline.errors import ConfigError

X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10)


def test_rows_come_in_the_order_asked_for_with_the_structure_kept() -> None:
    source = ArraySource({"x": {"a": X, "b": [Y, None]}, "y": Y, "sample_weight": None})
    x, y, sample_weight = source.take(np.array([7, 2, 2]))
    assert x["a"].tolist() == X[[7, 2, 2]].tolist()
    assert x["b"][0].tolist() == [7, 2, 2]
    assert x["b"][1] is None
    assert y.tolist() == [7, 2, 2]
    assert sample_weight is None


def test_rows_that_follow_each_other_are_not_copied() -> None:
    (x,) = ArraySource({"x": X}).take(np.arange(3, 7))
    assert np.shares_memory(x, X)
    assert x.tolist() == X[3:7].tolist()


@pytest.mark.parametrize(
    ("indices", "is_slice"), [([], True), ([5], True), ([5, 6, 7], True), ([5, 7, 6], False), ([3, 5, 5], False)]
)
def test_only_rows_that_follow_each_other_make_a_slice(indices: list[int], is_slice: bool) -> None:
    index = as_slice(np.array(indices, dtype=np.int64))
    assert isinstance(index, slice) == is_slice
    assert Y[index].tolist() == indices


def test_arrays_of_different_lengths_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"10 rows in x\['a'\]; 9 rows in x\['b'\], y"):
        ArraySource({"x": {"a": X, "b": X[:9]}, "y": Y[:9]})


def test_single_values_and_nothing_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"y is a single value \(int64\[\]\)"):
        ArraySource({"x": X, "y": np.array(3)})
    with pytest.raises(ConfigError, match="no data"):
        ArraySource({"x": None, "y": (None, {"a": None})})


def test_the_signature_tells_names_types_and_shapes() -> None:
    assert ArraySource({"x": [X], "y": Y}).signature() == "x[0] float32[10,4], y int64[10]"


def test_the_fingerprint_is_that_of_the_rows() -> None:
    fingerprint = ArraySource({"x": X, "y": Y}).fingerprint()
    assert ArraySource({"x": X.copy(), "y": Y.copy()}).fingerprint() == fingerprint
    assert ArraySource({"x": X[::-1], "y": Y}).fingerprint() != fingerprint
    assert ArraySource({"x": X, "y": Y + 1}).fingerprint() != fingerprint
    assert ArraySource({"x": X.astype(np.float64), "y": Y}).fingerprint() != fingerprint
