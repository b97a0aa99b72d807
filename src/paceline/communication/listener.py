"""Where peers knock: one data listener for each process, over TCP and, for peers on this host, a unix socket.

One thread accepts, shakes hands with any number of callers at once and parks their connections by generation and
rank until the communicator of that generation takes them. It outlives generations. Next file: `rendezvous.py`.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.clock import Deadline
from paceline.errors import PacelineError, ProtocolError
from paceline.types import WorkerIdentity
from paceline.wire.addresses import join_address
from paceline.wire.channels import refuse, shut_down, tune
from paceline.wire.handshake import Credentials, Handshake

logger = logging.getLogger("paceline.wire")

HANDSHAKE_TIMEOUT_SECONDS = 10.0
_MAX_CALLERS = 256  # at the same time in a handshake; the oldest makes room
_GREETING = struct.Struct("<4sIIII")
_GREETING_MARK = b"data"


@dataclass(frozen=True)
class Greeting:
    """The hello of a data connection: who calls, for which generation, as which rank of it."""

    generation: int
    rank: int
    identity: WorkerIdentity

    def encode(self) -> bytes:
        return _GREETING.pack(
            _GREETING_MARK, self.generation, self.rank, self.identity.worker, self.identity.incarnation
        )

    @staticmethod
    def decode(hello: bytes) -> Greeting:
        """Raises `ProtocolError` when the caller wants something else than talk."""
        if len(hello) != _GREETING.size or not hello.startswith(_GREETING_MARK):
            raise ProtocolError("not the hello of a data connection")
        _, generation, rank, worker, incarnation = _GREETING.unpack(hello)
        return Greeting(generation, rank, WorkerIdentity(worker, incarnation))


def unix_name(address: str) -> str:
    """The abstract unix socket of the listener at `address`: no file, so nothing stays behind."""
    return f"\0paceline-data-{address}"


class _Caller:
    """A connection whose handshake is under way."""

    def __init__(self, sock: socket.socket, handshake: Handshake) -> None:
        self.socket = sock
        self.handshake = handshake
        self.deadline = Deadline(HANDSHAKE_TIMEOUT_SECONDS)


class DataListener:
    """Listens from construction to `close`, in a thread of its own.

    Args:
        identity: this process.
        credentials: of its job.
        interface: the IP address to bind and to tell peers (see `wire.addresses.routing_address`).
        port: 0 picks a free one.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(
        self, identity: WorkerIdentity, credentials: Credentials, *, interface: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.identity = identity
        self._credentials = credentials
        self._floor = 0
        self._parked: dict[tuple[int, int], tuple[socket.socket, Greeting]] = {}
        self._changed = threading.Condition()
        self._closed = False
        family = socket.AF_INET6 if ":" in interface else socket.AF_INET
        self._tcp = socket.create_server((interface, port), family=family, backlog=512)
        self.address = join_address(interface, self._tcp.getsockname()[1])
        self._unix = _listen_unix(self.address)
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="paceline-data-listener", daemon=True)
        self._thread.start()

    @property
    def has_unix(self) -> bool:
        """Whether peers on this host can reach it over a unix socket."""
        return self._unix is not None

    def begin(self, generation: int) -> None:
        """Generations below `generation` are over: refuse their callers, close what was parked for them."""
        with self._changed:
            self._floor = max(self._floor, generation)
            for key in [key for key in self._parked if key[0] < self._floor]:
                _close(self._parked.pop(key)[0])
            self._changed.notify_all()

    def take(
        self, generation: int, rank: int, deadline: Deadline, check: Callable[[], None]
    ) -> tuple[socket.socket, Greeting]:
        """Wait for the connection of `rank`; it is then the caller's to close.

        `check` is called at each wake-up (see `wake`) and ends the wait by raising. Raises `TimeoutError` too.
        """
        with self._changed:
            while (generation, rank) not in self._parked:
                check()
                if deadline.expired:
                    raise TimeoutError(f"no call from it within {deadline.seconds:.3g} s")
                if self._closed:
                    raise ConnectionError("this process's data listener is closed")
                self._changed.wait(deadline.remaining)
            return self._parked.pop((generation, rank))

    def wake(self) -> None:
        """Make every `take` call its `check`."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop listening, close what was parked, end the thread."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        os.write(self._wake_write, b"!")
        self._thread.join()
        for sock, _ in self._parked.values():
            _close(sock)
        self._parked.clear()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        """The thread: accept, shake hands, park."""
        callers: dict[socket.socket, _Caller] = {}
        listeners = [listener for listener in (self._tcp, self._unix) if listener is not None]
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        while not self._closed:
            for key, _ in self._selector.select(1.0 if callers else None):
                source: Any = key.fileobj
                if source in listeners:
                    self._accept(source, callers)
                elif source in callers:
                    self._advance(callers[source], callers)
            for caller in [caller for caller in callers.values() if caller.deadline.expired]:
                self._drop(caller, callers, f"no handshake within {HANDSHAKE_TIMEOUT_SECONDS:.3g} s")
        for sock in [*callers, *listeners]:
            _close(sock)
        self._selector.close()

    def _accept(self, listener: socket.socket, callers: dict[socket.socket, _Caller]) -> None:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return  # the caller has gone again
        except OSError as error:
            logger.warning("cannot accept a data connection: %s", error)
            self._changed_wait(0.1)  # Out of descriptors: the listener stays readable, so look again a little later.
            return
        if len(callers) >= _MAX_CALLERS:
            self._drop(next(iter(callers.values())), callers, "too many callers at once")
        sock.setblocking(False)
        tune(sock)
        hello = Greeting(0, 0, self.identity).encode()
        callers[sock] = _Caller(sock, Handshake("listener", self._credentials, hello, admit=self._admit))
        self._selector.register(sock, selectors.EVENT_READ)

    def _changed_wait(self, seconds: float) -> None:
        with self._changed:
            if not self._closed:
                self._changed.wait(seconds)

    def _advance(self, caller: _Caller, callers: dict[socket.socket, _Caller]) -> None:
        """Take what a caller has said; answers are so short that they always fit into the socket's buffer."""
        try:
            data = caller.socket.recv(caller.handshake.num_wanted)
            if not data:
                raise ConnectionError("it closed the connection during the handshake")
            answer = caller.handshake.feed(data)
            if answer and caller.socket.send(answer) != len(answer):
                raise ConnectionError("it does not take our answer")
        except BlockingIOError:
            return
        except (OSError, PacelineError) as error:
            self._drop(caller, callers, str(error))
            return
        if caller.handshake.done:
            self._selector.unregister(caller.socket)
            del callers[caller.socket]
            self._park(caller)

    def _drop(self, caller: _Caller, callers: dict[socket.socket, _Caller], reason: str) -> None:
        logger.warning("refused a data connection from %s: %s", _name_of(caller.socket), reason)
        self._selector.unregister(caller.socket)
        del callers[caller.socket]
        refuse(caller.socket, caller.handshake.refusal)

    def _admit(self, hello: bytes) -> str | None:
        try:
            greeting = Greeting.decode(hello)
        except ProtocolError as error:
            return str(error)
        if greeting.generation < self._floor:
            return f"generation {greeting.generation} is over; worker {self.identity.worker} is in {self._floor}"
        return None

    def _park(self, caller: _Caller) -> None:
        greeting = Greeting.decode(caller.handshake.peer_hello)
        with self._changed:
            if greeting.generation < self._floor or self._closed:
                _close(caller.socket)  # it began while they shook hands
                return
            before = self._parked.pop((greeting.generation, greeting.rank), None)
            if before is not None:
                _close(before[0])  # the caller gave that one up, and calls again
            self._parked[greeting.generation, greeting.rank] = (caller.socket, greeting)
            self._changed.notify_all()


def _listen_unix(address: str) -> socket.socket | None:
    """None where there are no abstract unix sockets, or where a stranger sits on the name: then it is TCP for all."""
    if sys.platform != "linux":
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(unix_name(address))
        listener.listen(512)
    except OSError as error:
        logger.warning("no unix socket for peers on this host, they will use TCP: %s", error)
        listener.close()
        return None
    return listener


def _close(sock: socket.socket) -> None:
    shut_down(sock)
    sock.close()


def _name_of(sock: socket.socket) -> str:
    if sock.family == getattr(socket, "AF_UNIX", None):
        return "this host"
    try:
        return join_address(*sock.getpeername()[:2])
    except OSError:
        return "a caller that is gone"
