"""Bucket plans: every element in exactly one bucket, whatever the entries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.communication.arrays import dtype_of
from paceline.communication.buckets import Entry, layout_digest, plan_buckets

shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)
entries_lists = st.lists(
    st.tuples(shapes, st.sampled_from(["float32", "float16", "bfloat16", "int64"])), max_size=12
).map(lambda pairs: [(f"v{index}", shape, dtype) for index, (shape, dtype) in enumerate(pairs)])


@given(entries_lists, st.integers(1, 200), st.integers(1, 200))
def test_every_element_is_in_exactly_one_bucket_and_comes_back_to_its_place(
    entries: list[Entry], capacity_bytes: int, first_bytes: int
) -> None:
    buckets = plan_buckets(entries, capacity_bytes=capacity_bytes, first_bytes=first_bytes)
    arrays = [np.arange(int(np.prod(shape))) + 1000 * index for index, (_, shape, _) in enumerate(entries)]
    returned = {}
    for bucket in buckets:
        fused = np.full(bucket.num_elements, -1)
        for slot in bucket.slots:
            assert entries[slot.entry][2] == bucket.dtype
            fused[slot.offset : slot.offset + slot.size] = arrays[slot.entry]
        assert -1 not in fused
        for slot in bucket.slots:
            assert slot.entry not in returned
            returned[slot.entry] = fused[slot.offset : slot.offset + slot.size]
    assert sorted(returned) == list(range(len(entries)))
    assert all(np.array_equal(returned[index], array) for index, array in enumerate(arrays))


@given(entries_lists, st.integers(1, 200), st.integers(1, 200))
def test_a_bucket_is_over_its_capacity_only_with_a_single_entry(
    entries: list[Entry], capacity_bytes: int, first_bytes: int
) -> None:
    buckets = plan_buckets(entries, capacity_bytes=capacity_bytes, first_bytes=first_bytes)
    for bucket in buckets:
        num_bytes = bucket.num_elements * dtype_of(bucket.dtype).itemsize
        filled = [slot for slot in bucket.slots if slot.size]
        assert num_bytes <= capacity_bytes or len(filled) == 1


@given(entries_lists, st.integers(1, 200))
def test_entries_of_one_dtype_keep_their_order(entries: list[Entry], capacity_bytes: int) -> None:
    buckets = plan_buckets(entries, capacity_bytes=capacity_bytes, first_bytes=capacity_bytes)
    for dtype in {entry[2] for entry in entries}:
        order = [slot.entry for bucket in buckets if bucket.dtype == dtype for slot in bucket.slots]
        assert order == [index for index, entry in enumerate(entries) if entry[2] == dtype]
    assert [bucket.slots[-1].entry for bucket in buckets] == sorted(bucket.slots[-1].entry for bucket in buckets)


def test_a_tensor_that_follows_one_of_its_own_size_is_not_lost() -> None:
    entries: list[Entry] = [("a", (6,), "uint8"), ("b", (6,), "uint8")]
    buckets = plan_buckets(entries, capacity_bytes=10, first_bytes=10)
    assert [[slot.entry for slot in bucket.slots] for bucket in buckets] == [[0], [1]]


def test_the_first_bucket_is_small_and_the_later_ones_are_full() -> None:
    entries: list[Entry] = [(f"v{index}", (100,), "float32") for index in range(10)]
    buckets = plan_buckets(entries, capacity_bytes=1600, first_bytes=800)
    assert [len(bucket.slots) for bucket in buckets] == [2, 4, 4]


@pytest.mark.parametrize(
    "other",
    [
        [("a", (2, 3), "float32"), ("b", (4,), "float64")],
        [("a", (3, 2), "float32"), ("b", (4,), "float32")],
        [("b", (4,), "float32"), ("a", (2, 3), "float32")],
        [("a", (2, 3), "float32")],
    ],
)
def test_layouts_that_differ_have_other_digests(other: list[Entry]) -> None:
    entries: list[Entry] = [("a", (2, 3), "float32"), ("b", (4,), "float32")]
    assert layout_digest(entries, plan_buckets(entries)) == layout_digest(list(entries), plan_buckets(list(entries)))
    assert layout_digest(entries, plan_buckets(entries)) != layout_digest(other, plan_buckets(other))
