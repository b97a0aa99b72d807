"""Recursive doubling (Thakur, Rabenseifner and Gropp, 2005, https://doi.org/10.1177/1094342005051521), for messages
so small that the number of steps counts: log2(W) of them, each with the whole array.

In step k, rank r and rank r XOR 2^k exchange what they have and both add it up: a + b here, b + a there, which are the
same bits. Where W is no power of two, each of the last ranks first gives its array to a partner, and is given the
result at the end.

One thing is not the same in both orders: of two NaNs that differ in sign or payload an addition keeps one. So NaNs
are made alike at the end; all ranks have them in the same places.

Next file: `tree.py`.
"""

from __future__ import annotations

import numpy as np

from paceline.communication.transfer import Consume, LinkTo, as_bytes, exchange


def all_reduce(source: np.ndarray, out: np.ndarray, *, rank: int, size: int, link: LinkTo) -> None:
    """Sum `source` (at most one segment) over all ranks into `out`, which may be `source`."""
    if out is not source:
        out[:] = source
    doubling = 1 << (size.bit_length() - 1)  # the ranks that take part in the doubling
    data = as_bytes(out)

    def add(view: memoryview) -> None:
        np.add(out, np.frombuffer(view, out.dtype), out=out)

    if rank >= doubling:
        partner = link(rank - doubling)
        partner.send(data)
        partner.receive_into(data)
        return
    extra = link(rank + doubling) if rank + doubling < size else None
    if extra is not None:
        extra.consume(len(data), add)
    distance = 1
    while distance < doubling:
        partner = link(rank ^ distance)
        # A copy leaves, for what arrives is added in place, perhaps before all has left.
        exchange(partner, memoryview(bytes(data)), partner, [Consume(len(data), add)])
        distance *= 2
    _make_nans_alike(out)
    if extra is not None:
        extra.send(data)


def _make_nans_alike(array: np.ndarray) -> None:
    if array.dtype.kind not in "biu":
        nans = np.isnan(array)
        if nans.any():
            array[nans] = np.nan
