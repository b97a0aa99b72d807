"""A group's means of talk over links to each peer: checks the arguments, picks the algorithm, runs it.

It implements `protocols.Communicator`. A group of one has no links: every call is a copy. Next file:
`selection.py`, which picks; `collectives/` has the algorithms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from paceline.communication import selection
from paceline.communication.collectives import all_to_all, broadcast, halving, ring, tree
from paceline.communication.protocols import ReduceOperation
from paceline.communication.transfer import DuplexLink, LinkKind, as_bytes


class Links(Protocol):
    """One member's links to the others of its group."""

    @property
    def kinds(self) -> frozenset[LinkKind]:
        """The kinds of link in the group, the same for every member."""

    def to(self, peer: int) -> DuplexLink:
        """The link to rank `peer`; made when first asked for."""

    def describe(self) -> str:
        """What they are, for people."""

    def check(self) -> None:
        """Raise `GenerationOver` after `abort`."""

    def abort(self, reason: str) -> None: ...

    def close(self) -> None: ...

    @property
    def bytes_sent(self) -> int: ...

    @property
    def bytes_received(self) -> int: ...


class GroupCommunicator:
    """The `Communicator` of one member. For one thread at a time; `abort` is for any thread at any time."""

    def __init__(self, *, rank: int, size: int, generation: int, links: Links) -> None:
        self._rank = rank
        self._size = size
        self._generation = generation
        self._links = links

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def bytes_sent(self) -> int:
        """To all peers so far, headers included where there are any."""
        return self._links.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._links.bytes_received

    def describe(self) -> str:
        """For people: "shared memory to 1 peer, TCP to 2"."""
        return self._links.describe()

    def all_reduce(self, source: np.ndarray, out: np.ndarray, *, operation: ReduceOperation = "sum") -> None:
        _check_arrays(source, out)
        _check(len(source) == len(out), f"all_reduce of {len(source)} elements into {len(out)}")
        self._links.check()
        if self._size > 1 and len(source) > 0:
            decision = selection.choose(source.nbytes, self._size, self._links.kinds, operation=operation)
        else:
            decision = selection.Decision("alone", "nothing to exchange")
        match decision.algorithm:
            case "alone":
                if out is not source:
                    out[:] = source
            case "recursive doubling":
                halving.all_reduce(source, out, rank=self._rank, size=self._size, link=self._links.to)
            case "ring":
                left, right = self._neighbours()
                ring.all_reduce(
                    source, out, rank=self._rank, size=self._size, left=left, right=right, operation=operation
                )

    def tree_all_reduce(self, partials: Mapping[tuple[int, int], np.ndarray], num_leaves: int, out: np.ndarray) -> None:
        for value in partials.values():
            _check_arrays(value, out)
            _check(len(value) == len(out), f"tree_all_reduce of {len(value)} elements into {len(out)}")
        self._links.check()
        tree.all_reduce(partials, num_leaves, out, rank=self._rank, size=self._size, link=self._links.to)

    def reduce_scatter(self, source: np.ndarray, out: np.ndarray) -> None:
        _check_arrays(source, out)
        _check(len(source) == self._size * len(out), f"reduce_scatter of {len(source)} elements into {len(out)}")
        self._links.check()
        all_to_all.reduce_scatter(source, out, rank=self._rank, size=self._size, link=self._links.to)

    def all_gather(self, source: np.ndarray, out: np.ndarray) -> None:
        _check_arrays(source, out)
        _check(len(out) == self._size * len(source), f"all_gather of {len(source)} elements into {len(out)}")
        self._links.check()
        count = len(source)
        out[self._rank * count : (self._rank + 1) * count] = source
        if self._size > 1 and count:
            left, right = self._neighbours()
            parts = [(rank * count, (rank + 1) * count) for rank in range(self._size)]
            ring.all_gather(out, parts, rank=self._rank, left=left, right=right)

    def all_gather_bytes(self, payload: bytes) -> list[bytes]:
        self._links.check()
        return all_to_all.gather_bytes(payload, rank=self._rank, size=self._size, link=self._links.to)

    def all_to_all(self, parts: Sequence[bytes]) -> list[bytes]:
        _check(len(parts) == self._size, f"all_to_all of {len(parts)} parts in a group of {self._size}")
        self._links.check()
        return all_to_all.all_to_all(parts, rank=self._rank, size=self._size, link=self._links.to)

    def broadcast(self, buffer: np.ndarray, *, root: int = 0) -> None:
        _check_arrays(buffer, buffer)
        _check(0 <= root < self._size, f"broadcast from rank {root} in a group of {self._size}")
        self._links.check()
        broadcast.broadcast(buffer, root=root, rank=self._rank, size=self._size, link=self._links.to)

    def send(self, payload: np.ndarray, *, to: int) -> None:
        self._check_peer(to)
        self._links.to(to).send(as_bytes(payload))

    def receive(self, target: np.ndarray, *, source: int) -> None:
        self._check_peer(source)
        self._links.to(source).receive_into(as_bytes(target))

    def barrier(self) -> None:
        self.all_gather_bytes(b"")

    def abort(self, reason: str) -> None:
        self._links.abort(reason)

    def close(self) -> None:
        self._links.close()

    def _neighbours(self) -> tuple[DuplexLink, DuplexLink]:
        """Left and right in the ring. Made in an order in which no two members wait for each other."""
        left, right = (self._rank - 1) % self._size, (self._rank + 1) % self._size
        made = {peer: self._links.to(peer) for peer in sorted({left, right}, reverse=True)}
        return made[left], made[right]

    def _check_peer(self, peer: int) -> None:
        _check(0 <= peer < self._size and peer != self._rank, f"rank {self._rank} of {self._size} to rank {peer}")
        self._links.check()


def _check_arrays(source: np.ndarray, out: np.ndarray) -> None:
    for array in (source, out):
        flat = array.ndim == 1 and array.flags.c_contiguous and array.dtype.isnative
        _check(flat, f"an array of shape {array.shape}, strides {array.strides}, dtype {array.dtype}")
    _check(source.dtype == out.dtype, f"{source.dtype} into {out.dtype}")


def _check(sound: bool, what: str) -> None:
    """The callers are our own floors; a wrong argument here is a bug of ours, told before anything is sent."""
    if not sound:
        raise ValueError(f"not possible: {what}")
