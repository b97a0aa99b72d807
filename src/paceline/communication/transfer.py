"""The engine of all talk: pieces leave and arrive at the same time, over any links, without threads.

A link offers two verbs that never wait, `push` and `pull`; `transfer` calls them in turn until everything has moved
and sleeps only when nothing can. So two peers that send to each other at once cannot block each other, whatever the
size of the buffers between them, and a piece may be set free by the arrival of another (`Outgoing.needs`), which is
how a ring keeps receive, add and send going at the same time.

Next files: `transports/memory.py` (the simplest link), then `collectives/ring.py` (the first user).
"""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from paceline.communication.protocols import Consumer
from paceline.errors import PeerLost

LinkKind = Literal["memory", "shared memory", "TCP"]

SEGMENT_BYTES = 1024 * 1024
"""The largest piece that moves as one frame: of 128 KiB to 1 MiB the fastest, as each piece costs some 20 us (2026)."""

_LENGTH = struct.Struct("<Q")
_SLICE_SECONDS = 0.1  # how often a wait looks up, to find silence and as a net under a lost wake-up


@dataclass(frozen=True)
class Consume:
    """A piece to be read where it lies. `num_bytes` None: a frame of any length."""

    num_bytes: int | None
    consumer: Consumer


Arrival = memoryview | Consume
"""What to do with the next frame: fill this memory, or pass it to this consumer."""


class Waiter(Protocol):
    """How the links of one generation wait, and how their waits are ended. They share one."""

    timeout_seconds: float
    spin_seconds: float

    def check(self) -> None:
        """Raise `GenerationOver` after `abort`."""

    def wait(self, sending: Sequence[DuplexLink], receiving: Sequence[DuplexLink], timeout_seconds: float) -> None:
        """Return when one of the links may be able to move something, or at the time-out. Raises `GenerationOver`."""

    def abort(self, reason: str) -> None:
        """End every running and later wait, from any thread."""


class DuplexLink(ABC):
    """A `Link` (see `protocols.py`) whose two directions move without waiting."""

    kind: LinkKind

    def __init__(self, peer: int, waiter: Waiter) -> None:
        self.peer = peer
        self.waiter = waiter
        self.bytes_sent = 0
        self.bytes_received = 0

    @abstractmethod
    def push(self, piece: memoryview) -> bool:
        """Move what can be moved of `piece` (at most `SEGMENT_BYTES`) now. True: all of it is handed over. False:
        call again with the same piece."""

    @abstractmethod
    def pull(self, piece: Arrival) -> bool:
        """Take what has arrived of the next frame. True: `piece` is served. False: call again with the same piece."""

    @abstractmethod
    def close(self) -> None:
        """Tell the peer that this side leaves, and give everything back."""

    def send(self, data: memoryview) -> None:
        transfer([Outgoing(self, list(cut(data)))], [])

    def receive_into(self, target: memoryview) -> None:
        transfer([], [Incoming(self, list(cut(target)))])

    def consume(self, num_bytes: int, consumer: Consumer) -> None:
        transfer([], [Incoming(self, [Consume(size, consumer) for size in cut_sizes(num_bytes)])])

    def abort(self, reason: str) -> None:
        """Links of one generation share their fate: this ends the waits of all links with the same waiter."""
        self.waiter.abort(reason)

    def wrong_size(self, arrived: int, expected: int) -> str:
        return f"rank {self.peer} sent {arrived} bytes where {expected} were due: the ranks make different calls"


LinkTo = Callable[[int], DuplexLink]
"""The link to a rank; made when first asked for."""


@dataclass(slots=True)
class Outgoing:
    """Pieces for one link, in order. Piece k may leave once `needs[k]` pieces of the first `Incoming` were served;
    without `needs`, at once."""

    link: DuplexLink
    pieces: Sequence[memoryview]
    needs: Sequence[int] | None = None
    done: int = 0


@dataclass(slots=True)
class Incoming:
    """What to do with the next frames of one link, in order. A consumer may append to `pieces`."""

    link: DuplexLink
    pieces: Sequence[Arrival]
    done: int = 0


def transfer(outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]) -> None:
    """Move all pieces; a link may stand in both lists, but only once in each.

    Raises `PeerLost` (also when a peer was silent for the waiter's `timeout_seconds`), `GenerationOver`,
    `CorruptFrame`, and `ProtocolError` when the peer's pieces have other sizes.
    """
    if not outgoing and not incoming:
        return
    waiter = (outgoing or incoming)[0].link.waiter
    waiter.check()
    idle = _Idle(waiter)
    while True:
        moved, finished = False, True
        for flow in outgoing:
            if flow.done < len(flow.pieces):
                if _may_leave(flow, incoming) and flow.link.push(flow.pieces[flow.done]):
                    flow.done += 1
                    moved = True
                finished = finished and flow.done == len(flow.pieces)
        for arriving in incoming:
            if arriving.done < len(arriving.pieces):
                if arriving.link.pull(arriving.pieces[arriving.done]):
                    arriving.done += 1
                    moved = True
                finished = finished and arriving.done == len(arriving.pieces)
        if finished:
            return
        if moved:
            idle.since = 0.0
        else:
            idle.rest(outgoing, incoming)


def _may_leave(flow: Outgoing, incoming: Sequence[Incoming]) -> bool:
    return flow.needs is None or flow.needs[flow.done] <= incoming[0].done


class _Idle:
    """What `transfer` does while nothing moves: look again for some microseconds, then sleep, then lose patience."""

    def __init__(self, waiter: Waiter) -> None:
        self.since = 0.0
        self._waiter = waiter
        self._heard: dict[tuple[int, str], tuple[int, float]] = {}

    def rest(self, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]) -> None:
        now = time.monotonic()
        self.since = self.since or now
        if now - self.since < self._waiter.spin_seconds:
            return
        sending = [flow.link for flow in outgoing if flow.done < len(flow.pieces) and _may_leave(flow, incoming)]
        receiving = [flow.link for flow in incoming if flow.done < len(flow.pieces)]
        self._lose_patience(now, sending, receiving)
        self._waiter.wait(sending, receiving, min(_SLICE_SECONDS, self._waiter.timeout_seconds))

    def _lose_patience(self, now: float, sending: list[DuplexLink], receiving: list[DuplexLink]) -> None:
        """Raise when a peer that we wait for has not moved a byte for too long."""
        counters = [((link.peer, "to"), link.bytes_sent) for link in sending]
        counters += [((link.peer, "from"), link.bytes_received) for link in receiving]
        silent = set()
        for key, count in counters:
            known, since = self._heard.get(key, (-1, now))
            if count != known:
                self._heard[key] = (count, now)
            elif now - since >= self._waiter.timeout_seconds:
                silent.add(key[0])
        if silent:
            raise PeerLost(tuple(sorted(silent)), f"silent for {self._waiter.timeout_seconds:.3g} s")


def exchange(
    send_link: DuplexLink | None, data: memoryview, receive_link: DuplexLink | None, arrivals: Sequence[Arrival]
) -> None:
    """Send `data` and serve `arrivals` at the same time; either side may be missing (None)."""
    transfer(
        [Outgoing(send_link, list(cut(data)))] if send_link is not None else [],
        [Incoming(receive_link, arrivals)] if receive_link is not None else [],
    )


def exchange_messages(sends: Sequence[tuple[DuplexLink, bytes]], receives: Sequence[DuplexLink]) -> list[bytes]:
    """Send and receive messages whose lengths the other side does not know; returned in the order of `receives`."""
    messages = [_Message() for _ in receives]
    transfer(
        [Outgoing(link, list(_message_pieces(payload))) for link, payload in sends],
        [Incoming(link, message.pieces) for link, message in zip(receives, messages, strict=True)],
    )
    return [bytes(message.payload) for message in messages]


def _message_pieces(payload: bytes) -> Iterator[memoryview]:
    """The length and what fits beside it, then the rest."""
    first = SEGMENT_BYTES - _LENGTH.size
    yield memoryview(_LENGTH.pack(len(payload)) + payload[:first])
    yield from cut(memoryview(payload)[first:])


class _Message:
    """Takes the pieces of one message as they come."""

    def __init__(self) -> None:
        self.payload = bytearray()
        self.pieces: list[Arrival] = [Consume(None, self._open)]

    def _open(self, view: memoryview) -> None:
        (length,) = _LENGTH.unpack_from(view)
        self.payload += view[_LENGTH.size :]
        self.pieces += [Consume(size, self._continue) for size in cut_sizes(length - len(self.payload))]

    def _continue(self, view: memoryview) -> None:
        self.payload += view


def cut(data: memoryview) -> Iterator[memoryview]:
    """`data` in pieces of at most `SEGMENT_BYTES`; none for no data."""
    for first in range(0, len(data), SEGMENT_BYTES):
        yield data[first : first + SEGMENT_BYTES]


def cut_sizes(num_bytes: int) -> list[int]:
    """The sizes of the pieces that `cut` makes of `num_bytes`."""
    return [min(SEGMENT_BYTES, num_bytes - first) for first in range(0, num_bytes, SEGMENT_BYTES)]


def as_bytes(array: np.ndarray) -> memoryview:
    """The memory of a contiguous one-dimensional array. (bfloat16 has no buffer of its own, hence the view.)"""
    return array.view(np.uint8).data
