"""A sum whose bits depend on the leaves alone: not on the number of ranks, nor on who holds which leaf.

Floating-point addition is not associative, so the order is fixed: leaves 0 .. L-1 (the microbatches of a round) stand
under one binary tree, in which the left child of a node with n leaves has the largest power of two below n. Each rank
sums what lies under the nodes that its own contiguous leaves cover (`TreeSum`, `cover`), and sends these partial sums;
for each chunk of the array one rank receives all of them, finishes the very same tree, and passes the result round.

Next file: `../selection.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from paceline.communication.collectives import all_to_all, ring
from paceline.communication.transfer import (
    SEGMENT_BYTES,
    Arrival,
    Incoming,
    LinkTo,
    Outgoing,
    as_bytes,
    transfer,
)
from paceline.errors import RanksDisagree

Node = tuple[int, int]
"""(first leaf, last leaf + 1)"""


def split(first: int, last: int) -> int:
    """Where the right child of the node [first, last) begins; it has at least two leaves."""
    return first + (1 << (last - first - 1).bit_length() - 1)


def cover(first: int, last: int, num_leaves: int) -> list[Node]:
    """The fewest nodes of the tree over `num_leaves` that together hold exactly the leaves [first, last)."""

    def visit(node: Node) -> list[Node]:
        if node[1] <= first or last <= node[0]:
            return []
        if first <= node[0] and node[1] <= last:
            return [node]
        middle = split(*node)
        return visit((node[0], middle)) + visit((middle, node[1]))

    return visit((0, num_leaves)) if first < last else []


def parent(node: Node, num_leaves: int) -> Node:
    """The node that has `node` as a child; the root is its own parent."""
    above, below = (0, num_leaves), (0, num_leaves)
    while below != node:
        middle = split(*below)
        above, below = below, ((below[0], middle) if node[1] <= middle else (middle, below[1]))
    return above


class TreeSum:
    """Sums the contiguous leaves `first`, `first + 1` ... as they come, in the tree's order, in O(log n) buffers."""

    def __init__(self, num_leaves: int, first: int = 0) -> None:
        self._num_leaves = num_leaves
        self._next = first
        self._stack: list[tuple[Node, np.ndarray]] = []
        self._spare: list[np.ndarray] = []

    def add(self, leaf: np.ndarray, *, owned: bool = False) -> None:
        """Take the next leaf. It is only read and not kept, unless it is `owned`: then it is ours, to keep and to
        overwrite."""
        if self._next >= self._num_leaves:
            raise ValueError(f"leaf {self._next} of {self._num_leaves}")
        node: Node = (self._next, self._next + 1)
        self._next += 1
        # The right operand of the next addition; a buffer of ours only when it was owned or has been a sum.
        value, ours = leaf, owned
        while self._stack and self._is_sibling(self._stack[-1][0], node):
            (first, _), left = self._stack.pop()
            np.add(left, value, out=left)
            if ours:
                self._spare.append(value)
            node, value, ours = (first, node[1]), left, True
        self._stack.append((node, value if ours else self._copy(value)))

    def partials(self) -> dict[Node, np.ndarray]:
        """The sums under the nodes that cover the leaves so far: what `tree_all_reduce` takes. Valid until the next
        `add`."""
        return dict(self._stack)

    def _is_sibling(self, left: Node, right: Node) -> bool:
        """Whether these two stand under one parent: then `right` is whole."""
        return left[1] == right[0] and parent(left, self._num_leaves) == (left[0], right[1])

    def _copy(self, value: np.ndarray) -> np.ndarray:
        buffer = self._spare.pop() if self._spare else np.empty_like(value)
        np.copyto(buffer, value)
        return buffer


def finish(partials: Mapping[Node, np.ndarray], num_leaves: int, out: np.ndarray) -> None:
    """Sum partials that hold every leaf exactly once, in the tree's order, into `out`. The partials are overwritten."""

    def visit(node: Node) -> np.ndarray:
        if node in partials:
            return partials[node]
        middle = split(*node)
        left, right = visit((node[0], middle)), visit((middle, node[1]))
        target = out if node == (0, num_leaves) else left
        np.add(left, right, out=target)
        return target

    total = visit((0, num_leaves))
    if total is not out:
        out[:] = total


def check_cover(nodes: Sequence[Sequence[Node]], num_leaves: int) -> None:
    """Raise `RanksDisagree` unless the ranks' nodes are nodes of the tree that hold every leaf exactly once."""
    everyone = sorted(node for held in nodes for node in held)
    firsts = [first for first, _ in everyone]
    lasts = [last for _, last in everyone]
    whole = bool(everyone) and firsts == [0, *lasts[:-1]] and lasts[-1] == num_leaves
    if not whole or any(cover(first, last, num_leaves) != [(first, last)] for first, last in everyone):
        table = "\n".join(f"  rank {rank}: {sorted(held)}" for rank, held in enumerate(nodes))
        raise RanksDisagree(f"the leaves that the ranks have summed are not leaves 0 to {num_leaves - 1}:\n{table}")


def all_reduce(
    partials: Mapping[Node, np.ndarray], num_leaves: int, out: np.ndarray, *, rank: int, size: int, link: LinkTo
) -> None:
    """Sum the partials of all ranks in the tree's order into `out`; `partials` are only read."""
    nodes = _exchange_nodes(sorted(partials), rank=rank, size=size, link=link)
    check_cover(nodes, num_leaves)
    parts = ring.split(0, len(out), size)
    longest = max(last - first for first, last in parts)
    # All partials of a stretch are held at once, so the stretch is short; all ranks cut alike.
    stretch = max(1, SEGMENT_BYTES // out.itemsize)
    for offset in range(0, longest, stretch):
        stretches = [(min(first + offset, last), min(first + offset + stretch, last)) for first, last in parts]
        _reduce_stretches(partials, nodes, num_leaves, out, stretches, rank=rank, size=size, link=link)
    if size > 1:
        ring.all_gather(out, parts, rank=rank, left=link((rank - 1) % size), right=link((rank + 1) % size))


def _reduce_stretches(
    partials: Mapping[Node, np.ndarray],
    nodes: Sequence[Sequence[Node]],
    num_leaves: int,
    out: np.ndarray,
    stretches: Sequence[ring.Bounds],
    *,
    rank: int,
    size: int,
    link: LinkTo,
) -> None:
    """Every rank p receives all partials of `stretches[p]` and finishes the tree there."""
    first, last = stretches[rank]
    gathered = {node: np.empty(last - first, out.dtype) for held in nodes for node in held}
    for node, value in partials.items():
        gathered[node][:] = value[first:last]
    outgoing, incoming = [], []
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        begin, end = stretches[to]
        if partials and begin < end:
            outgoing.append(Outgoing(link(to), [as_bytes(partials[node][begin:end]) for node in nodes[rank]]))
        if nodes[source] and first < last:
            arrivals: list[Arrival] = [as_bytes(gathered[node]) for node in nodes[source]]
            incoming.append(Incoming(link(source), arrivals))
    transfer(outgoing, incoming)
    finish(gathered, num_leaves, out[first:last])


def _exchange_nodes(own: Sequence[Node], *, rank: int, size: int, link: LinkTo) -> list[list[Node]]:
    payload = b"".join(struct.pack("<QQ", *node) for node in own)
    gathered = all_to_all.gather_bytes(payload, rank=rank, size=size, link=link)
    return [[(first, last) for first, last in struct.iter_unpack("<QQ", held)] for held in gathered]
