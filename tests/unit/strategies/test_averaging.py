"""Sums over microbatches and members: sparse rows, buffers that are kept, digests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.communication.buckets import plan_buckets
from paceline.communication.communicator import GroupCommunicator
from paceline.strategies.averaging import Reduction, digest_of, merge_rows, reduce_sparse
from paceline.strategies.protocols import Contribution, Layout, SparseRows
from paceline.testing.cluster import run_group

LAYOUT = Layout(plan_buckets([("a", (4,), "float32"), ("b", (3,), "float64")]))
ROWS = st.lists(st.tuples(st.integers(0, 11), st.integers(-8, 8)), max_size=20)


def contribution(seed: int) -> Contribution:
    source = np.random.default_rng(seed)
    return Contribution(
        tuple(source.normal(size=bucket.num_elements).astype(bucket.dtype) for bucket in LAYOUT.buckets), origin="mine"
    )


def table_of(rows: SparseRows, height: int, width: int) -> np.ndarray:
    table = np.zeros((height, width), np.float32)
    table[rows.ids] += rows.rows
    return table


@given(ROWS)
def test_rows_of_one_id_are_summed_and_ids_ascend(pairs: list[tuple[int, int]]) -> None:
    ids = np.array([row for row, _ in pairs], np.int64)
    rows = np.array([[value, 2 * value] for _, value in pairs], np.float32).reshape(-1, 2)
    merged = merge_rows(ids, rows)
    assert merged.ids.tolist() == sorted(set(ids.tolist()))
    for row, values in zip(merged.ids, merged.rows, strict=True):
        assert values.tolist() == rows[ids == row].sum(axis=0).tolist()


def test_rows_are_summed_in_the_order_in_which_they_come() -> None:
    values = np.array([[1e8], [1.0], [-1e8]], np.float32)
    merged = merge_rows(np.array([4, 4, 4]), values)
    assert merged.rows.tolist() == [[np.float32(np.float32(1e8) + np.float32(1.0)) - np.float32(1e8)]]


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 4), entries=st.lists(ROWS, min_size=1, max_size=6), allow_dense=st.booleans())
def test_sparse_and_dense_exchange_give_the_dense_sum(
    size: int, entries: list[list[tuple[int, int]]], allow_dense: bool
) -> None:
    layout = Layout((), ((12, 2), (12, 2)))

    def rows_of(pairs: list[tuple[int, int]]) -> SparseRows:
        ids = np.array([row for row, _ in pairs], np.int64)
        return merge_rows(ids, np.array([[value, value] for _, value in pairs], np.float32).reshape(-1, 2))

    def body(communicator: GroupCommunicator) -> tuple[SparseRows, ...]:
        own = [(rows_of(pairs), rows_of(pairs[:1])) for pairs in entries[communicator.rank :: communicator.size]]
        return reduce_sparse(own, layout, communicator, allow_dense=allow_dense)

    expected = np.zeros((12, 2), np.float32)
    for pairs in entries:
        for row, value in pairs:
            expected[row] += value
    results = run_group(size, body)
    for table, _ in results:
        assert table_of(table, 12, 2).tolist() == expected.tolist()
        assert sorted(set(table.ids.tolist())) == table.ids.tolist()
    assert len({digest_of(Contribution((), result)) for result in results}) == 1


def test_a_table_of_which_most_rows_are_named_is_exchanged_whole() -> None:
    layout = Layout((), ((8, 64),))

    def body(communicator: GroupCommunicator) -> int:
        entry = SparseRows(np.arange(8), np.ones((8, 64), np.float32))
        (result,) = reduce_sparse([(entry,)] * 5, layout, communicator, allow_dense=True)
        assert result.rows.tolist() == np.full((8, 64), 15.0).tolist()
        return communicator.bytes_sent

    table_bytes = 8 * 64 * 4
    assert max(run_group(3, body)) < 3 * table_bytes, "five microbatches of whole tables would be ten times that"


def test_a_group_of_one_with_one_microbatch_hands_its_contribution_back_as_it_is() -> None:
    only = contribution(1)

    def body(communicator: GroupCommunicator) -> list[Contribution]:
        totals = []
        for deterministic in (False, True):
            total = Reduction(deterministic=deterministic).start(LAYOUT, 1)
            total.add(0, only)
            totals.append(total.reduce(communicator))
        return totals

    assert all(total is only for total in run_group(1, body)[0])


@pytest.mark.parametrize("deterministic", [False, True])
def test_contributions_are_only_read(deterministic: bool) -> None:
    def body(communicator: GroupCommunicator) -> None:
        given_ = [contribution(seed) for seed in range(4)]
        before = [[buffer.copy() for buffer in one.buffers] for one in given_]
        for _ in range(2):
            total = Reduction(deterministic=deterministic).start(LAYOUT, 4 * communicator.size)
            for index, one in enumerate(given_):
                for buffer in one.buffers:
                    buffer.flags.writeable = False
                total.add(4 * communicator.rank + index, one)
            total.reduce(communicator)
        for one, buffers in zip(given_, before, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(one.buffers, buffers, strict=True))

    run_group(2, body)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_discarded_sum_leaves_nothing_in_the_next_one(deterministic: bool) -> None:
    reductions = [Reduction(deterministic=deterministic) for _ in range(2)]

    def body(communicator: GroupCommunicator) -> Contribution:
        reduction = reductions[communicator.rank]
        total = reduction.start(LAYOUT, 2)
        total.add(communicator.rank, contribution(5 + communicator.rank))  # its talk is never held
        total = reduction.start(LAYOUT, 2)
        total.add(communicator.rank, contribution(communicator.rank))
        return total.reduce(communicator)

    expected = [a + b for a, b in zip(contribution(0).buffers, contribution(1).buffers, strict=True)]
    for result in run_group(2, body):
        for buffer, wanted in zip(result.buffers, expected, strict=True):
            assert buffer.tolist() == wanted.tolist()


def test_a_member_without_microbatches_adds_nothing() -> None:
    def body(communicator: GroupCommunicator) -> Contribution:
        reduction = Reduction(deterministic=False)
        for buffer in reduction.buffers(LAYOUT):
            buffer.fill(99)  # what an earlier round left
        total = reduction.start(LAYOUT, 1)
        if communicator.rank == 1:
            total.add(0, contribution(3))
        return total.reduce(communicator)

    for result in run_group(3, body):
        for buffer, wanted in zip(result.buffers, contribution(3).buffers, strict=True):
            assert buffer.tolist() == wanted.tolist()


def test_digests_are_equal_exactly_for_equal_sums() -> None:
    rows = SparseRows(np.array([1, 4]), np.ones((2, 3), np.float32))
    base = Contribution(contribution(1).buffers, (rows,))
    assert digest_of(base) == digest_of(Contribution(contribution(1).buffers, (rows,), origin="other"))
    assert digest_of(base) != digest_of(Contribution(contribution(2).buffers, (rows,)))
    assert digest_of(base) != digest_of(Contribution(base.buffers, (SparseRows(np.array([1, 5]), rows.rows),)))
    assert digest_of(base) != digest_of(Contribution(base.buffers, (SparseRows(rows.ids, rows.rows * 2),)))
