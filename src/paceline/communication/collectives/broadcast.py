"""Broadcast: a binomial tree for small buffers, a chain for large ones.

In the chain each rank hands every segment on as soon as it has it, so that the whole takes about as long as one
transfer, and nobody sends more than one copy. The tree needs log2(W) steps but its root sends log2(W) copies.

Next file: `tree.py`.
"""

from __future__ import annotations

import numpy as np

from paceline.communication.transfer import Incoming, LinkTo, Outgoing, as_bytes, cut, transfer

_TREE_UP_TO_BYTES = 64 * 1024


def broadcast(buffer: np.ndarray, *, root: int, rank: int, size: int, link: LinkTo) -> None:
    """Overwrite `buffer` on every rank with the root's."""
    place = (rank - root) % size
    if buffer.nbytes <= _TREE_UP_TO_BYTES:
        parent, children = _tree(place, size)
    else:
        parent, children = (place - 1 if place else None), ([place + 1] if place + 1 < size else [])
    pieces = list(cut(as_bytes(buffer)))
    needs = None if parent is None else list(range(1, len(pieces) + 1))
    transfer(
        [Outgoing(link((child + root) % size), pieces, needs) for child in children],
        [] if parent is None else [Incoming(link((parent + root) % size), pieces)],
    )


def _tree(place: int, size: int) -> tuple[int | None, list[int]]:
    """Parent and children of `place` in a binomial tree: the parent is `place` without its lowest bit."""
    lowest = place & -place if place else 1 << size.bit_length()
    children = []
    bit = lowest >> 1
    while bit:
        if place + bit < size:
            children.append(place + bit)
        bit >>= 1
    return (place - lowest if place else None), children
