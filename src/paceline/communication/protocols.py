"""The two seams of talk: a `Link` moves bytes between two peers, a `Communicator` is one group's means of talk.

Next file: `communicator.py`, the implementation that picks an algorithm for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

ReduceOperation = Literal["sum", "max", "min"]
Consumer = Callable[[memoryview], None]


class Link(Protocol):
    """A two-way, ordered, reliable stream of bytes to one peer of one generation.

    Every method raises `PeerLost` when the peer is gone or silent past the deadline, `GenerationOver` after
    `abort`, and `CorruptFrame` when bytes arrive damaged; after any of these the link is of no further use.
    """

    def send(self, data: memoryview) -> None:
        """Hand over all of `data`. Returns when `data` may be changed again."""

    def receive_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes."""

    def consume(self, num_bytes: int, consumer: Consumer) -> None:
        """Pass the next `num_bytes` to `consumer` in pieces, in order, without copying where that can be avoided.
        A piece is valid only during the call and starts at a multiple of 8 bytes from the message's start."""

    def abort(self, reason: str) -> None:
        """End every running and later call of this link at once, from any thread."""

    def close(self) -> None: ...


class Communicator(Protocol):
    """One generation's means of talk. Calls are collective: all members make the same calls in the same order.

    All arrays are one-dimensional, contiguous numpy arrays in native byte order; any numeric dtype, ml_dtypes'
    bfloat16 included. All ranks end with the same bits. Raises what `Link` raises.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def generation(self) -> int: ...

    def all_reduce(self, source: np.ndarray, out: np.ndarray, *, operation: ReduceOperation = "sum") -> None:
        """Combine `source` over all ranks into `out` (same shape and dtype); `source` is only read, may be `out`."""

    def tree_all_reduce(self, partials: Mapping[tuple[int, int], np.ndarray], num_leaves: int, out: np.ndarray) -> None:
        """Sum `num_leaves` leaves in one fixed tree order, whatever the number of ranks.

        `partials` maps (first, last + 1) to the sum, in the same tree, of those leaves: the canonical nodes that
        cover this rank's contiguous leaves (see `collectives/tree.py`). A rank without leaves gives an empty mapping.
        """

    def reduce_scatter(self, source: np.ndarray, out: np.ndarray) -> None:
        """Sum over all ranks; rank r keeps block r. `source` holds size x len(out) elements."""

    def all_gather(self, source: np.ndarray, out: np.ndarray) -> None:
        """Put every rank's `source` into `out`, in rank order. `out` holds size x len(source) elements."""

    def all_gather_bytes(self, payload: bytes) -> list[bytes]:
        """Every rank's payload, in rank order. Lengths may differ. Cheap for small payloads: log2(size) steps."""

    def all_to_all(self, parts: Sequence[bytes]) -> list[bytes]:
        """Send parts[p] to rank p; return what each rank sent here, in rank order."""

    def broadcast(self, buffer: np.ndarray, *, root: int = 0) -> None:
        """Overwrite `buffer` on every rank with the root's."""

    def send(self, payload: np.ndarray, *, to: int) -> None: ...

    def receive(self, target: np.ndarray, *, source: int) -> None: ...

    def barrier(self) -> None:
        """Return after every rank has called it."""

    def abort(self, reason: str) -> None:
        """End every running and later call at once, with `GenerationOver`. Safe from any thread."""

    def close(self) -> None: ...
