"""All-to-all, and what is made of it: every rank has something for every other rank.

In step s rank r sends to r + s and receives from r - s, so in each step everybody sends to one and receives from one.
`gather_bytes` is Bruck's all-gather (1997, https://doi.org/10.1109/71.642949): in step k everybody passes on all that
it has to the rank 2^k before it, so log2(W) steps suffice. The vote of each round runs over it.

Next file: `broadcast.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from paceline.communication.transfer import Consume, LinkTo, as_bytes, cut_sizes, exchange, exchange_messages
from paceline.errors import ProtocolError


def all_to_all(parts: Sequence[bytes], *, rank: int, size: int, link: LinkTo) -> list[bytes]:
    """Send `parts[p]` to rank p; return what each rank sent here, in rank order."""
    received = [b""] * size
    received[rank] = bytes(parts[rank])
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        received[source] = exchange_messages([(link(to), parts[to])], [link(source)])[0]
    return received


def reduce_scatter(source: np.ndarray, out: np.ndarray, *, rank: int, size: int, link: LinkTo) -> None:
    """Sum block r of every rank's `source` on rank r. Each block is summed in one place, in one order."""
    count, width = len(out), source.itemsize
    out[:] = source[rank * count : (rank + 1) * count]
    data = as_bytes(source)
    for step in range(1, size):
        to, origin = (rank + step) % size, (rank - step) % size
        adder = _Adder(out)
        arrivals = [Consume(num_bytes, adder) for num_bytes in cut_sizes(out.nbytes)]
        exchange(link(to), data[to * count * width : (to + 1) * count * width], link(origin), arrivals)


class _Adder:
    """Adds pieces to an array, one after the other."""

    def __init__(self, total: np.ndarray) -> None:
        self._total = total
        self._first = 0

    def __call__(self, view: memoryview) -> None:
        piece = np.frombuffer(view, self._total.dtype)
        target = self._total[self._first : self._first + len(piece)]
        np.add(target, piece, out=target)
        self._first += len(piece)


def gather_bytes(payload: bytes, *, rank: int, size: int, link: LinkTo) -> list[bytes]:
    """Every rank's payload, in rank order, in ceil(log2(size)) steps."""
    blocks = [payload]  # of ranks rank, rank + 1, ... modulo size
    while len(blocks) < size:
        distance = len(blocks)
        passed_on = blocks[: size - distance]
        message = exchange_messages(
            [(link((rank - distance) % size), _join(passed_on))], [link((rank + distance) % size)]
        )
        blocks += _part(message[0])
    return [blocks[(other - rank) % size] for other in range(size)]


def _join(blocks: Sequence[bytes]) -> bytes:
    return struct.pack(f"<I{len(blocks)}Q", len(blocks), *map(len, blocks)) + b"".join(blocks)


def _part(message: bytes) -> list[bytes]:
    try:
        (count,) = struct.unpack_from("<I", message)
        lengths = struct.unpack_from(f"<{count}Q", message, 4)
    except struct.error as error:
        raise ProtocolError("an all-gather met another call: the ranks make different calls") from error
    blocks, first = [], 4 + 8 * count
    for length in lengths:
        blocks.append(message[first : first + length])
        first += length
    if first != len(message):
        raise ProtocolError("an all-gather met another call: the ranks make different calls")
    return blocks
