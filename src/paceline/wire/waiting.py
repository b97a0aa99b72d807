"""Waiting for a socket: with a deadline, and so that any thread can end the wait. Next file: `channels.py`."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import Any

from paceline.clock import Deadline
from paceline.errors import GenerationOver

READABLE = select.POLLIN
WRITABLE = select.POLLOUT


class Interrupt:
    """A switch that any thread may throw, once; every wait that watches it ends with `GenerationOver(reason)`."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        self._lock = threading.Lock()
        self._closed = False
        self.reason: str | None = None

    @property
    def is_set(self) -> bool:
        return self.reason is not None

    def fileno(self) -> int:
        """Readable once the switch is thrown."""
        return self._read_end

    def set(self, reason: str) -> None:
        """Throw the switch. The first reason stays."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
                if not self._closed:
                    os.write(self._write_end, b"!")

    def check(self) -> None:
        if self.reason is not None:
            raise GenerationOver(self.reason)

    def close(self) -> None:
        """Give the descriptors back. Only when no wait watches any more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read_end)
                os.close(self._write_end)


def wait_for(fd: int, events: int, deadline: Deadline, interrupt: Interrupt | None = None) -> int:
    """Wait until one of `events` (or an error) shows on `fd`; return what showed.

    Raises `TimeoutError` at the deadline and `GenerationOver` when the interrupt was set.
    """
    poll = select.poll()
    poll.register(fd, events)
    if interrupt is not None:
        interrupt.check()
        poll.register(interrupt, READABLE)
    while True:
        remaining = deadline.remaining
        # Rounded up: a poll of 0 ms before the deadline would turn the last millisecond into a busy loop.
        ready = dict(poll.poll(int(remaining * 1000) + 1 if remaining else 0))
        if interrupt is not None:
            interrupt.check()
        if fd in ready:
            return ready[fd]
        if deadline.expired:
            raise TimeoutError(f"nothing for {deadline.seconds:.3g} s")


def connect(address: tuple[str, int] | str, deadline: Deadline, interrupt: Interrupt | None = None) -> socket.socket:
    """A connected, non-blocking socket to (host, port), or to the unix socket of that (abstract) name.

    Raises `ConnectionError` and `TimeoutError` that name the address, and `GenerationOver`.
    """
    if isinstance(address, str):
        return _connect_one(socket.AF_UNIX, address, deadline, interrupt)
    try:
        targets = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionError(f"cannot find {address[0]}: {error}") from error
    for index, (family, _, _, _, target) in enumerate(targets):
        try:
            return _connect_one(family, target, deadline, interrupt)
        except ConnectionError:
            if index == len(targets) - 1:
                raise
    raise ConnectionError(f"{address[0]} has no address")


def _connect_one(
    family: int, target: tuple[Any, ...] | str, deadline: Deadline, interrupt: Interrupt | None
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(target)
                return sock
            except BlockingIOError as error:
                if family == getattr(socket, "AF_UNIX", None):
                    # A unix listener whose queue is full says "again" instead of going on by itself.
                    if deadline.expired:
                        raise TimeoutError(f"{target!r} does not answer") from error
                    if interrupt is not None:
                        interrupt.check()
                    time.sleep(0.001)  # Nothing tells when there is room.
                    continue
            wait_for(sock.fileno(), WRITABLE, deadline, interrupt)
            error_number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error_number:
                raise ConnectionError(error_number, f"cannot connect to {target!r}: {os.strerror(error_number)}")
            return sock
    except ConnectionError:
        sock.close()
        raise
    except TimeoutError as error:
        sock.close()
        raise TimeoutError(f"cannot connect to {target!r}: {error}") from error
    except OSError as error:
        sock.close()
        raise ConnectionError(f"cannot connect to {target!r}: {error}") from error
    except GenerationOver:
        sock.close()
        raise
