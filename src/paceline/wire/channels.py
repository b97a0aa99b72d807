"""Blocking messages over a socket: dial or accept, shake hands, then send and receive whole payloads.

`streams.py` is the asyncio twin; the two ends of one connection may be of either kind.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from paceline.clock import Deadline
from paceline.wire.addresses import split_address
from paceline.wire.frames import MAX_MESSAGE_BYTES, Frame, FrameDecoder, Kind, encode
from paceline.wire.handshake import Admit, Credentials, Handshake
from paceline.wire.waiting import READABLE, WRITABLE, Interrupt, connect, wait_for

_RECEIVE_BYTES = 256 * 1024


class Channel:
    """An authenticated connection that carries payloads. `send` is safe from several threads, `receive` is for one."""

    def __init__(self, sock: socket.socket, peer_hello: bytes, *, send_timeout_seconds: float = 30.0) -> None:
        self.socket = sock
        self.peer_hello = peer_hello
        self.send_timeout_seconds = send_timeout_seconds
        self._decoder = FrameDecoder(limit=MAX_MESSAGE_BYTES)
        self._arrived: list[Frame] = []
        self._num_sent = 0
        self._lock = threading.Lock()
        self._closed = False

    def send(self, payload: bytes) -> None:
        """Send one payload. Raises `ConnectionError` when the peer is gone or takes nothing for
        `send_timeout_seconds`; the channel is then of no further use."""
        with self._lock:
            frame = encode(Kind.MESSAGE, payload, sequence=self._num_sent)
            self._num_sent += 1
            try:
                send_all(self.socket, frame, Deadline(self.send_timeout_seconds))
            except TimeoutError as error:
                self.close()
                raise ConnectionError(f"the peer took nothing for {self.send_timeout_seconds:.3g} s") from error

    def receive(self, timeout_seconds: float) -> bytes:
        """The next payload. Raises `TimeoutError` (call again: nothing is lost), `ConnectionError` when the peer is
        gone, `CorruptFrame` and `ProtocolError` when what arrived cannot be used."""
        deadline = Deadline(timeout_seconds)
        while not self._arrived:
            data = receive_some(self.socket, _RECEIVE_BYTES, deadline)
            if not data:
                raise ConnectionError("the peer closed the connection")
            self._arrived = self._decoder.feed(data)
        return self._arrived.pop(0).payload

    def close(self) -> None:
        """Close the connection; a `receive` that waits in another thread ends with `ConnectionError`."""
        if not self._closed:
            self._closed = True
            shut_down(self.socket)
            self.socket.close()


def dial(
    address: str, credentials: Credentials, hello: bytes, *, deadline: Deadline, interrupt: Interrupt | None = None
) -> Channel:
    """Connect to "host:port" and shake hands.

    Raises `ConnectionError`, `TimeoutError`, `AuthenticationError`, `ProtocolError`, and `GenerationOver` when
    `interrupt` was set.
    """
    sock = connect(split_address(address), deadline, interrupt)
    tune(sock)
    return Channel(sock, shake_hands(sock, Handshake("dialer", credentials, hello), deadline, interrupt))


def accept(
    sock: socket.socket, credentials: Credentials, hello: bytes, *, deadline: Deadline, admit: Admit | None = None
) -> Channel:
    """Shake hands on a connection that a listener accepted. `admit` may refuse the peer by its hello.

    Raises what `dial` raises. The socket is closed on any error.
    """
    tune(sock)
    return Channel(sock, shake_hands(sock, Handshake("listener", credentials, hello, admit=admit), deadline))


def shake_hands(
    sock: socket.socket, handshake: Handshake, deadline: Deadline, interrupt: Interrupt | None = None
) -> bytes:
    """Run `handshake` over `sock`; return the peer's hello. On any error the socket is closed."""
    sock.setblocking(False)
    try:
        send_all(sock, handshake.start(), deadline, interrupt)
        while not handshake.done:
            data = receive_some(sock, handshake.num_wanted, deadline, interrupt)
            if not data:
                raise ConnectionError("the peer closed the connection during the handshake")
            send_all(sock, handshake.feed(data), deadline, interrupt)
        return handshake.peer_hello
    except BaseException:
        refuse(sock, handshake.refusal)
        raise


def refuse(sock: socket.socket, refusal: bytes) -> None:
    """Close, with a last word if it fits into the socket's buffer."""
    with contextlib.suppress(OSError):  # The word is a courtesy; the peer sees the connection close in any case.
        sock.send(refusal)
    shut_down(sock)
    sock.close()


def send_all(sock: socket.socket, data: bytes, deadline: Deadline, interrupt: Interrupt | None = None) -> None:
    """Send all of `data` over a non-blocking socket."""
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            wait_for(sock.fileno(), WRITABLE, deadline, interrupt)
        except OSError as error:
            raise _as_connection_error(error) from error


def receive_some(sock: socket.socket, num_bytes: int, deadline: Deadline, interrupt: Interrupt | None = None) -> bytes:
    """At least one byte from a non-blocking socket; b"" when the peer has closed."""
    while True:
        try:
            return sock.recv(num_bytes)
        except BlockingIOError:
            wait_for(sock.fileno(), READABLE, deadline, interrupt)
        except OSError as error:
            raise _as_connection_error(error) from error


def tune(sock: socket.socket) -> None:
    """Small messages leave at once; a vanished host is noticed by the kernel too."""
    if sock.family != getattr(socket, "AF_UNIX", None):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def shut_down(sock: socket.socket) -> None:
    """Wake every thread that waits on `sock`, and tell the peer."""
    with contextlib.suppress(OSError):  # It may not be connected any more, which is all we want.
        sock.shutdown(socket.SHUT_RDWR)


def _as_connection_error(error: OSError) -> ConnectionError:
    return error if isinstance(error, ConnectionError) else ConnectionError(f"the connection broke: {error}")
