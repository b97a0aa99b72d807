"""Links between hosts: frames over one TCP connection, each with a checksum, sent and received without a copy of ours.

`sendmsg` gathers header and payload; `recvmsg_into` scatters them again, the payload straight into its target. Next
file: `shared_memory.py`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection

from paceline.communication.transfer import SEGMENT_BYTES, Arrival, Consume, DuplexLink, LinkKind
from paceline.communication.transports.polling import PollWaiter, Wanted
from paceline.errors import CorruptFrame, GenerationOver, PeerLost, ProtocolError
from paceline.wire.channels import shut_down
from paceline.wire.frames import HEADER_BYTES, Kind, checksum, decode_header, encode_header
from paceline.wire.waiting import READABLE, WRITABLE


class TcpLink(DuplexLink):
    """Frames over an authenticated, non-blocking stream socket that belongs to one generation alone."""

    kind: LinkKind = "TCP"

    def __init__(self, sock: socket.socket, peer: int, generation: int, waiter: PollWaiter) -> None:
        super().__init__(peer, waiter)
        self._socket = sock
        self._generation = generation
        self._closed = False
        # Outgoing: what is left of the frame under way.
        self._unsent: list[memoryview] = []
        self._num_pushed = 0
        # Incoming: the frame under way.
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._length: int | None = None  # known once the header is here
        self._checksum = 0
        self._num_arrived = 0
        self._num_pulled = 0
        self._scratch = memoryview(bytearray(SEGMENT_BYTES))

    def push(self, piece: memoryview) -> bool:
        if not self._unsent:
            header = encode_header(Kind.DATA, self._generation, self._num_pushed, len(piece), checksum(piece))
            self._unsent = [memoryview(header), piece]
        try:
            while self._unsent:
                self._advance(self._socket.sendmsg(self._unsent))
        except BlockingIOError:
            return False
        except OSError as error:
            raise PeerLost((self.peer,), f"connection closed ({error.strerror})") from error
        self._num_pushed += 1
        return True

    def _advance(self, num_sent: int) -> None:
        self.bytes_sent += num_sent
        while self._unsent and num_sent >= len(self._unsent[0]):
            num_sent -= len(self._unsent.pop(0))
        if num_sent:
            self._unsent[0] = self._unsent[0][num_sent:]

    def pull(self, piece: Arrival) -> bool:
        if isinstance(piece, Consume):
            length, target = piece.num_bytes, self._scratch
        else:
            length, target = len(piece), piece
        while self._length is None or self._num_arrived < HEADER_BYTES + self._length:
            if not self._receive(target, length):
                return False
            if self._length is None and self._num_arrived >= HEADER_BYTES:
                self._length, self._checksum = self._read_header(length)
        payload = target[: self._length]
        if checksum(payload) != self._checksum:
            raise CorruptFrame(f"frame {self._num_pulled} from rank {self.peer} arrived damaged")
        self._length = None
        self._num_arrived = 0
        self._num_pulled += 1
        if isinstance(piece, Consume):
            piece.consumer(payload)
        return True

    def _receive(self, target: memoryview, length: int | None) -> bool:
        """Read more of the frame under way: as much as is surely of this frame. False: nothing is there."""
        if self._length is not None:
            length = self._length
        arrived = self._num_arrived
        try:
            if arrived >= HEADER_BYTES:
                assert length is not None
                count = self._socket.recv_into(target[arrived - HEADER_BYTES : length])
            elif length is None:
                count = self._socket.recv_into(self._header[arrived:])
            else:
                count = self._socket.recvmsg_into([self._header[arrived:], target[:length]])[0]
        except BlockingIOError:
            return False
        except OSError as error:
            raise PeerLost((self.peer,), f"connection closed ({error.strerror})") from error
        if count == 0:
            raise PeerLost((self.peer,), "connection closed")
        self._num_arrived += count
        self.bytes_received += count
        return True

    def _read_header(self, length: int | None) -> tuple[int, int]:
        """Length and checksum of the frame under way. Raises unless it is the one that is due."""
        try:
            header = decode_header(self._header, limit=SEGMENT_BYTES)
        except ProtocolError as error:
            # The handshake has shown who this is: what is no frame now is damage.
            raise CorruptFrame(f"what rank {self.peer} sent arrived damaged: {error}") from error
        if header.generation != self._generation or header.sequence != self._num_pulled:
            raise CorruptFrame(
                f"frame {header.sequence} of generation {header.generation} came from rank {self.peer} where frame "
                f"{self._num_pulled} of generation {self._generation} was due"
            )
        if header.kind == Kind.GOODBYE:
            raise GenerationOver(f"rank {self.peer} has left generation {self._generation}")
        if length is not None and header.length != length:
            raise ProtocolError(self.wrong_size(header.length, length))
        return header.length, header.checksum

    def arm(self, *, send: bool, receive: bool) -> Wanted:
        return [(self._socket.fileno(), (WRITABLE if send else 0) | (READABLE if receive else 0))]

    def disarm(self, ready: Collection[int]) -> None:
        pass

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._unsent:
            goodbye = encode_header(Kind.GOODBYE, self._generation, self._num_pushed, 0, checksum(b""))
            # A courtesy: it spares the peer a wrong suspicion. The connection closes in any case.
            with contextlib.suppress(OSError):
                self._socket.send(goodbye)
        shut_down(self._socket)
        self._socket.close()
