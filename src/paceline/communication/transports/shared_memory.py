"""Links between processes of one host: two rings of slots in memory that both have mapped, and one unix socket.

The memory has no name (`memfd_create`, handed over as a descriptor), so nothing can stay behind, whoever is killed. A
frame is copied once, into a slot; its receiver reads it there. A peer that sleeps is woken through an `eventfd` (a byte
over the socket would do, but such a wake-up moves the peer to the waker's core: 0.5 ms in place of 0.12 ms for 4 KiB on
two cores, 2026). The end of the socket tells at once that the peer is gone. Payloads carry no checksum: they never
leave this machine's memory, which the gradients themselves live in.

Both sides count frames: `pushed` is written by the sender alone, `pulled` by the receiver alone, and the slot of a
frame is free again when `pulled` has passed it. The sender takes the slot that became free last: while the receiver
keeps up, a few slots stay in the cache; when it falls behind, there are many. Python has no memory barriers, so this
is offered only where the processor keeps the order of stores (x86); elsewhere the peers talk TCP.

Next file: `../rendezvous.py`, which makes the links.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import socket
import sys
import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from paceline.clock import Deadline
from paceline.communication.transfer import SEGMENT_BYTES, Arrival, Consume, DuplexLink, LinkKind
from paceline.communication.transports.polling import PollWaiter, Wanted
from paceline.errors import GenerationOver, PeerLost, ProtocolError
from paceline.wire.channels import shut_down
from paceline.wire.waiting import READABLE, wait_for

NUM_SLOTS = 8
_LINE = 64  # bytes of a cache line: each counter has one of its own
_CONTROL_BYTES = 4096
_RING_BYTES = NUM_SLOTS * SEGMENT_BYTES
_TOTAL_BYTES = _CONTROL_BYTES + 2 * _RING_BYTES
_SLOT_SHIFT = 32
_MARK = b"\x01"


def is_supported() -> bool:
    """Whether this system and processor can do it."""
    return (
        sys.platform == "linux"
        and hasattr(os, "memfd_create")
        and hasattr(os, "eventfd")
        and hasattr(socket, "AF_UNIX")
        and platform.machine().lower() in ("x86_64", "amd64")
    )


@dataclass(frozen=True)
class _Half:
    """Where one direction keeps its things: places of 8-byte words in the control page, and of its slots."""

    pushed: int
    pulled: int
    frames: int  # what frame number n is: its slot and length, at n modulo NUM_SLOTS
    slots: int


_WORDS_A_LINE = _LINE // 8
_HALVES = (
    _Half(0, 1 * _WORDS_A_LINE, 8 * _WORDS_A_LINE, _CONTROL_BYTES),
    _Half(2 * _WORDS_A_LINE, 3 * _WORDS_A_LINE, 16 * _WORDS_A_LINE, _CONTROL_BYTES + _RING_BYTES),
)
_ASLEEP = (4 * _WORDS_A_LINE, 5 * _WORDS_A_LINE)  # 1 while that side sleeps and wants to be woken
_LEFT = (6 * _WORDS_A_LINE, 7 * _WORDS_A_LINE)  # 1 when that side has left on purpose


class SharedMemoryLink(DuplexLink):
    """One end of the two rings. `side` is 0 for who made the memory, 1 for who was given it."""

    kind: LinkKind = "shared memory"

    def __init__(
        self, sock: socket.socket, memory: mmap.mmap, bells: list[int], side: int, peer: int, waiter: PollWaiter
    ) -> None:
        super().__init__(peer, waiter)
        self._socket = sock
        self._bell, self._peer_bell = bells[side], bells[1 - side]
        self._memory = memory
        self._view = memoryview(memory)
        self._words = self._view[:_CONTROL_BYTES].cast("Q")
        self._out, self._in = _HALVES[side], _HALVES[1 - side]
        self._out_slots, self._in_slots = (self._slots(half) for half in (self._out, self._in))
        self._side = side
        self._free = list(range(NUM_SLOTS))  # a stack
        self._taken: deque[int] = deque()  # slots of frames that the peer has not pulled yet, oldest first
        self._num_pushed = 0
        self._num_pulled = 0
        self._hung_up = False
        self._closed = False
        # Taking a lock is a full barrier on x86: what was stored before is seen before what is loaded after.
        self._barrier = threading.Lock()

    def _slots(self, half: _Half) -> list[memoryview]:
        return [
            self._view[half.slots + slot * SEGMENT_BYTES : half.slots + (slot + 1) * SEGMENT_BYTES]
            for slot in range(NUM_SLOTS)
        ]

    def push(self, piece: memoryview) -> bool:
        num_unread = self._num_pushed - self._words[self._out.pulled]
        while len(self._taken) > num_unread:
            self._free.append(self._taken.popleft())
        if not self._free:
            return False
        slot = self._free.pop()
        self._taken.append(slot)
        self._out_slots[slot][: len(piece)] = piece
        self._words[self._out.frames + self._num_pushed % NUM_SLOTS] = slot << _SLOT_SHIFT | len(piece)
        self._num_pushed += 1
        self._words[self._out.pushed] = self._num_pushed
        self.bytes_sent += len(piece)
        self._wake_peer()
        return True

    def pull(self, piece: Arrival) -> bool:
        if self._words[self._in.pushed] == self._num_pulled:
            return False
        slot, length = divmod(self._words[self._in.frames + self._num_pulled % NUM_SLOTS], 1 << _SLOT_SHIFT)
        expected = piece.num_bytes if isinstance(piece, Consume) else len(piece)
        if expected is not None and expected != length:
            raise ProtocolError(self.wrong_size(length, expected))
        if isinstance(piece, Consume):
            piece.consumer(self._in_slots[slot][:length])
        else:
            piece[:] = self._in_slots[slot][:length]
        self._num_pulled += 1
        self._words[self._in.pulled] = self._num_pulled
        self.bytes_received += length
        self._wake_peer()
        return True

    def _wake_peer(self) -> None:
        with self._barrier:
            pass
        if self._words[_ASLEEP[1 - self._side]]:
            os.eventfd_write(self._peer_bell, 1)

    def arm(self, *, send: bool, receive: bool) -> Wanted | None:
        self._words[_ASLEEP[self._side]] = 1
        with self._barrier:
            pass
        if receive and self._words[self._in.pushed] != self._num_pulled:
            return None
        if send and self._num_pushed - self._words[self._out.pulled] < NUM_SLOTS:
            return None
        if self._words[_LEFT[1 - self._side]]:
            raise GenerationOver(f"rank {self.peer} has left this generation")
        if self._hung_up:
            raise PeerLost((self.peer,), "connection closed")
        # After the hand-over nothing is ever sent over the socket: it becomes readable when the peer is gone.
        return [(self._bell, READABLE), (self._socket.fileno(), READABLE)]

    def disarm(self, ready: Collection[int]) -> None:
        self._words[_ASLEEP[self._side]] = 0
        if self._bell in ready:
            os.eventfd_read(self._bell)
        if self._socket.fileno() in ready:
            self._hung_up = True

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._words[_LEFT[self._side]] = 1
        shut_down(self._socket)
        self._socket.close()
        os.close(self._bell)
        os.close(self._peer_bell)
        # A view that a traceback still holds keeps the memory; it goes when that goes.
        with contextlib.suppress(BufferError):
            for view in (*self._out_slots, *self._in_slots, self._words, self._view):
                view.release()
            self._memory.close()


def make_descriptors() -> list[int]:
    """What both ends share: fresh, nameless, zeroed memory, then the two bells. Raises `OSError` where it cannot be."""
    made: list[int] = []
    try:
        made.append(os.memfd_create("paceline-link", os.MFD_CLOEXEC))
        os.ftruncate(made[0], _TOTAL_BYTES)
        for _ in range(2):
            made.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    except OSError:
        close_all(made)
        raise
    return made


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def create(sock: socket.socket, descriptors: list[int], peer: int, waiter: PollWaiter) -> SharedMemoryLink:
    """Hand what `make_descriptors` made to the peer over `sock` (a connected, non-blocking unix socket)."""
    try:
        # One byte and three descriptors on a fresh connection: the buffer has room.
        socket.send_fds(sock, [_MARK], descriptors)
        return _link(sock, descriptors, 0, peer, waiter)
    except OSError as error:
        sock.close()
        close_all(descriptors)
        raise PeerLost((peer,), f"no shared memory with it: {error}") from error


def receive(sock: socket.socket, peer: int, waiter: PollWaiter, deadline: Deadline) -> SharedMemoryLink:
    """Take what `create` at the other end of `sock` hands over."""
    descriptors: list[int] = []
    try:
        wait_for(sock.fileno(), READABLE, deadline, waiter.interrupt)
        _, descriptors, _, _ = socket.recv_fds(sock, len(_MARK), 3)
        if len(descriptors) != 3:
            raise ConnectionError("connection closed")
        return _link(sock, descriptors, 1, peer, waiter)
    except (OSError, ValueError, GenerationOver) as error:
        sock.close()
        close_all(descriptors)
        if isinstance(error, GenerationOver):
            raise
        raise PeerLost((peer,), f"no shared memory with it: {error}") from error


def _link(sock: socket.socket, descriptors: list[int], side: int, peer: int, waiter: PollWaiter) -> SharedMemoryLink:
    memory = mmap.mmap(descriptors[0], _TOTAL_BYTES)
    os.close(descriptors[0])
    return SharedMemoryLink(sock, memory, descriptors[1:], side, peer, waiter)
