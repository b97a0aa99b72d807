"""Links between threads of one process, for tests: the reference that the other transports are held against.

Next file: `tcp.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from paceline.communication.communicator import GroupCommunicator
from paceline.communication.transfer import Arrival, Consume, DuplexLink, LinkKind
from paceline.errors import GenerationOver, PeerLost, ProtocolError

_CAPACITY_FRAMES = 2  # small, so that whoever counts on large buffers is found by the tests


class MemoryNetwork:
    """What the threads share: one lock, and a queue for each direction between two ranks."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._queues: dict[tuple[int, int], deque[bytes]] = {}
        self.left: set[int] = set()

    def queue(self, source: int, target: int) -> deque[bytes]:
        with self.changed:
            return self._queues.setdefault((source, target), deque())

    def leave(self, rank: int) -> None:
        """`rank` closes all its links, as a process that ends does."""
        with self.changed:
            self.left.add(rank)
            self.changed.notify_all()


class MemoryWaiter:
    """Waits on the network's condition."""

    def __init__(self, network: MemoryNetwork, *, timeout_seconds: float = 30.0) -> None:
        self.timeout_seconds = timeout_seconds
        self.spin_seconds = 0.0
        self._network = network
        self._reason: str | None = None

    def check(self) -> None:
        if self._reason is not None:
            raise GenerationOver(self._reason)

    def wait(self, sending: Sequence[DuplexLink], receiving: Sequence[DuplexLink], timeout_seconds: float) -> None:
        with self._network.changed:
            self.check()
            if not any(_can_push(link) for link in sending) and not any(_can_pull(link) for link in receiving):
                self._network.changed.wait(timeout_seconds)
            self.check()

    def abort(self, reason: str) -> None:
        with self._network.changed:
            self._reason = self._reason or reason
            self._network.changed.notify_all()


def _can_push(link: DuplexLink) -> bool:
    assert isinstance(link, MemoryLink)
    return len(link.outbox) < _CAPACITY_FRAMES or link.peer in link.network.left


def _can_pull(link: DuplexLink) -> bool:
    assert isinstance(link, MemoryLink)
    return bool(link.inbox) or link.peer in link.network.left


class MemoryLink(DuplexLink):
    """One rank's end of its queues to and from `peer`."""

    kind: LinkKind = "memory"

    def __init__(self, network: MemoryNetwork, rank: int, peer: int, waiter: MemoryWaiter) -> None:
        super().__init__(peer, waiter)
        self.network = network
        self.rank = rank
        self.outbox = network.queue(rank, peer)
        self.inbox = network.queue(peer, rank)

    def push(self, piece: memoryview) -> bool:
        with self.network.changed:
            if len(self.outbox) >= _CAPACITY_FRAMES:
                self._check_peer()
                return False
            self.outbox.append(bytes(piece))
            self.bytes_sent += len(piece)
            self.network.changed.notify_all()
            return True

    def pull(self, piece: Arrival) -> bool:
        with self.network.changed:
            if not self.inbox:
                self._check_peer()
                return False
            frame = self.inbox.popleft()
            self.bytes_received += len(frame)
            self.network.changed.notify_all()
        expected = piece.num_bytes if isinstance(piece, Consume) else len(piece)
        if expected is not None and expected != len(frame):
            raise ProtocolError(self.wrong_size(len(frame), expected))
        if isinstance(piece, Consume):
            piece.consumer(memoryview(frame))
        else:
            piece[:] = frame
        return True

    def close(self) -> None:
        self.network.leave(self.rank)

    def _check_peer(self) -> None:
        if self.peer in self.network.left:
            raise PeerLost((self.peer,), "connection closed")


class MemoryLinks:
    """The links of one rank."""

    kinds: frozenset[LinkKind] = frozenset({"memory"})

    def __init__(self, network: MemoryNetwork, rank: int, *, timeout_seconds: float) -> None:
        self._network = network
        self._rank = rank
        self._waiter = MemoryWaiter(network, timeout_seconds=timeout_seconds)
        self._links: dict[int, MemoryLink] = {}

    @property
    def bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self._links.values())

    @property
    def bytes_received(self) -> int:
        return sum(link.bytes_received for link in self._links.values())

    def to(self, peer: int) -> MemoryLink:
        if peer not in self._links:
            self._links[peer] = MemoryLink(self._network, self._rank, peer, self._waiter)
        return self._links[peer]

    def describe(self) -> str:
        return "threads of one process"

    def check(self) -> None:
        self._waiter.check()

    def abort(self, reason: str) -> None:
        self._waiter.abort(reason)

    def close(self) -> None:
        self._network.leave(self._rank)
        self._waiter.abort("this generation's communicator is closed")


def connect_memory(
    network: MemoryNetwork, rank: int, size: int, *, generation: int = 1, timeout_seconds: float = 30.0
) -> GroupCommunicator:
    """Rank `rank`'s means of talk among `size` threads that share `network`, which serves one generation."""
    links = MemoryLinks(network, rank, timeout_seconds=timeout_seconds)
    return GroupCommunicator(rank=rank, size=size, generation=generation, links=links)
