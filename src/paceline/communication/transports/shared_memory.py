"""Links between processes of one host: two rings of slots in memory that both have mapped, and one unix socket.

The memory has no name (`memfd_create`, handed over as a descriptor), so nothing can stay behind, whoever is killed. A
frame is copied once, into a slot; its receiver reads it there. The socket carries one byte to wake a peer that sleeps,
and its end tells at once that the peer is gone. Payloads carry no checksum: they never leave this machine's memory,
which the gradients themselves live in.

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
from dataclasses import dataclass

from paceline.clock import Deadline
from paceline.communication.transfer import SEGMENT_BYTES, Arrival, Consume, DuplexLink, LinkKind
from paceline.communication.transports.polling import PollWaiter
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

    def __init__(self, sock: socket.socket, memory: mmap.mmap, side: int, peer: int, waiter: PollWaiter) -> None:
        super().__init__(peer, waiter)
        self._socket = sock
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
            # The peer may be gone, and its socket may be full of such bytes: both are found where we wait.
            with contextlib.suppress(OSError):
                self._socket.send(_MARK)

    def arm(self, *, send: bool, receive: bool) -> tuple[int, int] | None:
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
        return self._socket.fileno(), READABLE

    def disarm(self) -> None:
        self._words[_ASLEEP[self._side]] = 0
        try:
            while not self._hung_up:
                self._hung_up = not self._socket.recv(256)
        except BlockingIOError:
            pass  # All marks are taken.
        except OSError:
            self._hung_up = True

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._words[_LEFT[self._side]] = 1
        shut_down(self._socket)
        self._socket.close()
        # A view that a traceback still holds keeps the memory; it goes when that goes.
        with contextlib.suppress(BufferError):
            for view in (*self._out_slots, *self._in_slots, self._words, self._view):
                view.release()
            self._memory.close()


def create(sock: socket.socket, descriptor: int, peer: int, waiter: PollWaiter) -> SharedMemoryLink:
    """Hand the memory of `make_memory` to the peer over `sock` (a connected, non-blocking unix socket)."""
    try:
        # One byte and one descriptor on a fresh connection: the buffer has room.
        socket.send_fds(sock, [_MARK], [descriptor])
        memory = mmap.mmap(descriptor, _TOTAL_BYTES)
    except OSError as error:
        sock.close()
        raise PeerLost((peer,), f"no shared memory with it: {error}") from error
    finally:
        os.close(descriptor)
    return SharedMemoryLink(sock, memory, 0, peer, waiter)


def make_memory() -> int:
    """A descriptor of fresh, nameless, zeroed memory for one link. Raises `OSError` where the system has none."""
    descriptor = os.memfd_create("paceline-link", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, _TOTAL_BYTES)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def receive(sock: socket.socket, peer: int, waiter: PollWaiter, deadline: Deadline) -> SharedMemoryLink:
    """Take the memory that `create` at the other end of `sock` hands over."""
    descriptors: list[int] = []
    try:
        wait_for(sock.fileno(), READABLE, deadline, waiter.interrupt)
        _, descriptors, _, _ = socket.recv_fds(sock, len(_MARK), 1)
        if not descriptors:
            raise ConnectionError("connection closed")
        memory = mmap.mmap(descriptors[0], _TOTAL_BYTES)
    except (OSError, ValueError, GenerationOver) as error:
        sock.close()
        if isinstance(error, GenerationOver):
            raise
        raise PeerLost((peer,), f"no shared memory with it: {error}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return SharedMemoryLink(sock, memory, 1, peer, waiter)
