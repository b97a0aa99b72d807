"""Sums of contributions: over a member's own microbatches, then over the group.

Two orders of summation. `Reduction(deterministic=False)` adds a member's contributions as they come and lets the
communicator choose its algorithm: the answer is the same for any number of members up to rounding. With
`deterministic=True` all microbatches are summed in one fixed tree (`communication/collectives/tree.py`), so the bits
do not depend on who computed which. Sparse rows are always merged in the order of the microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from paceline.communication.arrays import aligned_empty, array_checksum
from paceline.communication.collectives.tree import TreeSum
from paceline.communication.protocols import Communicator
from paceline.strategies.protocols import Contribution, Layout, SparseRows


class Sum(Protocol):
    """A running sum of one member's contributions to one round."""

    def add(self, index: int, contribution: Contribution) -> None:
        """Add microbatch number `index`; ascending."""

    def reduce(self, communicator: Communicator) -> Contribution:
        """The sum over the group. Valid until the next round's sum is started."""


class Reduction:
    """How contributions are summed. Keeps the buffers of the sum from round to round (one copy of the layout)."""

    def __init__(self, *, deterministic: bool) -> None:
        self.deterministic = deterministic
        self._layout: Layout | None = None
        self._buffers: tuple[np.ndarray, ...] = ()

    def start(self, layout: Layout, num_microbatches: int) -> Sum:
        if self.deterministic:
            return TreeOrderedSum(self, layout, num_microbatches)
        return PlainSum(self, layout)

    def buffers(self, layout: Layout) -> tuple[np.ndarray, ...]:
        """One array for each bucket of `layout`, contents undefined. Made on first use: a group of one whose
        rounds have one microbatch never needs them."""
        if self._layout != layout:
            self._layout = layout
            self._buffers = tuple(aligned_empty(bucket.num_elements, bucket.dtype) for bucket in layout.buckets)
        return self._buffers


class PlainSum:
    """Adds in place, as contributions come."""

    def __init__(self, reduction: Reduction, layout: Layout) -> None:
        self._reduction = reduction
        self._layout = layout
        self._first: Contribution | None = None
        self._added = 0
        self._sparse: list[tuple[SparseRows, ...]] = []

    def add(self, index: int, contribution: Contribution) -> None:
        self._sparse.append(contribution.sparse)
        if self._added == 0:
            self._first = contribution
        else:
            out = self._reduction.buffers(self._layout)
            terms = self._first.buffers if self._first is not None else out
            for target, left, right in zip(out, terms, contribution.buffers, strict=True):
                np.add(left, right, out=target)
            self._first = None
        self._added += 1

    def reduce(self, communicator: Communicator) -> Contribution:
        if communicator.size == 1 and self._first is not None:
            return self._first
        out = self._reduction.buffers(self._layout)
        if self._added == 0:
            for target in out:
                target.fill(0)
        if communicator.size > 1:
            sources = self._first.buffers if self._first is not None else out
            for source, target in zip(sources, out, strict=True):
                communicator.all_reduce(source, target)
        return Contribution(out, reduce_sparse(self._sparse, self._layout, communicator, allow_dense=True))


class TreeOrderedSum:
    """Adds in one fixed tree over all microbatches of the round."""

    def __init__(self, reduction: Reduction, layout: Layout, num_microbatches: int) -> None:
        self._reduction = reduction
        self._layout = layout
        self._num_microbatches = num_microbatches
        self._sums: list[TreeSum] = []
        self._sparse: list[tuple[SparseRows, ...]] = []
        self._only: Contribution | None = None

    def add(self, index: int, contribution: Contribution) -> None:
        self._sparse.append(contribution.sparse)
        self._only = contribution if self._num_microbatches == 1 else None
        if not self._sums:
            self._sums = [TreeSum(self._num_microbatches, index) for _ in contribution.buffers]
        for tree, buffer in zip(self._sums, contribution.buffers, strict=True):
            tree.add(buffer)

    def reduce(self, communicator: Communicator) -> Contribution:
        if communicator.size == 1 and self._only is not None:
            return self._only
        out = self._reduction.buffers(self._layout)
        partials = [tree.partials() for tree in self._sums] or [{} for _ in out]
        for partial, target in zip(partials, out, strict=True):
            communicator.tree_all_reduce(partial, self._num_microbatches, target)
        return Contribution(out, reduce_sparse(self._sparse, self._layout, communicator, allow_dense=False))


def reduce_sparse(
    own: Sequence[tuple[SparseRows, ...]],
    layout: Layout,
    communicator: Communicator,
    *,
    allow_dense: bool,
) -> tuple[SparseRows, ...]:
    """Sum sparse gradients over the group. `own[k]` is what this member's k-th microbatch gave, one entry a table.

    Rows are exchanged sparse, unless all microbatches together name more rows than the table has: then the table
    is exchanged whole (not in the deterministic order, where the sum over microbatches has to stay in their order).
    """
    tables = len(layout.sparse_shapes)
    if tables == 0:
        return ()
    named = np.zeros(tables, np.int64)
    for entries in own:
        named += [len(entry.ids) for entry in entries]
    if communicator.size > 1:
        everyone = np.empty(tables * communicator.size, np.int64)
        communicator.all_gather(named, everyone)
        named = everyone.reshape(communicator.size, tables).sum(axis=0)
    result = []
    dtypes = layout.sparse_dtypes or ("float32",) * tables
    for table, ((num_rows, width), dtype) in enumerate(zip(layout.sparse_shapes, dtypes, strict=True)):
        rows = [microbatch[table] for microbatch in own]
        if allow_dense and communicator.size > 1 and named[table] > num_rows:
            result.append(_reduce_whole_table(rows, num_rows, width, dtype, communicator))
        else:
            result.append(_gather_rows(rows, width, dtype, communicator))
    return tuple(result)


def merge_rows(ids: np.ndarray, rows: np.ndarray) -> SparseRows:
    """Sum the rows of equal ids, in the order in which they come."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_ids[1:] != sorted_ids[:-1]])) if len(ids) else order
    if len(starts) == len(ids):
        return SparseRows(sorted_ids, rows[order])
    return SparseRows(sorted_ids[starts], np.add.reduceat(rows[order], starts, axis=0))


def digest_of(contribution: Contribution) -> int:
    """Equal for equal sums."""
    parts = [array_checksum(buffer) for buffer in contribution.buffers]
    for entry in contribution.sparse:
        parts += [array_checksum(entry.ids), array_checksum(entry.rows)]
    return array_checksum(np.array(parts, np.uint64))


def _reduce_whole_table(
    entries: Sequence[SparseRows], num_rows: int, width: int, dtype: str, communicator: Communicator
) -> SparseRows:
    table = np.zeros((num_rows, width), dtype)
    for entry in entries:
        table[entry.ids] += entry.rows  # ids are unique within an entry
    flat = table.reshape(-1)
    communicator.all_reduce(flat, flat)
    return SparseRows(np.arange(num_rows), table)


def _gather_rows(entries: Sequence[SparseRows], width: int, dtype: str, communicator: Communicator) -> SparseRows:
    ids = np.concatenate([np.empty(0, np.int64), *(entry.ids for entry in entries)])
    rows = np.concatenate([np.empty((0, width), dtype), *(entry.rows for entry in entries)])
    if communicator.size > 1:
        id_parts = communicator.all_gather_bytes(ids.tobytes())
        row_parts = communicator.all_gather_bytes(np.ascontiguousarray(rows, dtype).tobytes())
        ids = np.frombuffer(b"".join(id_parts), np.int64)
        rows = np.frombuffer(b"".join(row_parts), dtype).reshape(-1, width)
    return merge_rows(ids, rows)
