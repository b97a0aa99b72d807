"""One incarnation of a worker as a process: started in a group of its own, its output read, its end seen at once.

Next file: `agent.py`, which keeps such processes running.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import termios
import threading
import tty
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import IO, Any

from paceline.observability.console import Stream

CHUNK_BYTES = 64 * 1024
QUIET_SECONDS = 0.2  # after the end, how long a pipe that someone still holds open is listened to

Receive = Callable[[Stream, bytes], None]
Ready = Callable[[], Awaitable[None]]


class WorkerProcess:
    """A running worker and all that it starts, as one process group.

    When the worker ends, by itself or not, what is left of its group is killed: nothing of an incarnation outlives it
    (a process that has made itself a session of its own on purpose does).
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self.was_killed_here = False
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._lock = threading.Lock()  # a process id may be used again once it was reaped
        self._is_reaped = False
        self._pumps: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._wait, name=f"paceline-wait-{name}", daemon=True)

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        receive: Receive,
        ready: Ready,
        terminals: frozenset[Stream] = frozenset(),
    ) -> WorkerProcess:
        """Start `command` with no input and its output passed to `receive`; `ready` is awaited before each piece.

        `terminals` are the streams that shall look like a terminal to the worker, so that its progress bars move.
        Call it from the main thread: the kernel ties the worker's life to the thread that started it. Raises `OSError`.
        """
        outputs: dict[Stream, tuple[IO[bytes], int]] = {}
        try:
            for stream in ("stdout", "stderr"):
                outputs[stream] = _open_terminal() if stream in terminals else _open_pipe()
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=outputs["stdout"][1],
                stderr=outputs["stderr"][1],
                start_new_session=True,
            )
        except OSError:
            for reading_end, _ in outputs.values():
                reading_end.close()
            raise
        finally:
            for _, writing_end in outputs.values():
                os.close(writing_end)
        worker = cls(name, process)
        worker._thread.start()
        for stream, (reading_end, _) in outputs.items():
            worker._pumps.append(asyncio.create_task(worker._pump(stream, reading_end, receive, ready)))
        return worker

    async def exited(self) -> int:
        """Wait for the end. The return code; a negative number is a signal."""
        return await asyncio.shield(self._exit)

    async def drained(self) -> None:
        """Wait until all output was passed on. Call it after `exited`."""
        await asyncio.gather(*self._pumps)

    def send_signal(self, number: signal.Signals, *, whole_group: bool = True) -> None:
        """Send a signal to the worker and all that it has started, or to it alone; nothing happens after its end."""
        with self._lock:
            if self._is_reaped:
                return
            self.was_killed_here |= number is signal.SIGKILL
            if whole_group:
                self._signal_group(number)
            else:
                self._process.send_signal(number)

    def _signal_group(self, number: signal.Signals) -> None:
        # ProcessLookupError: the group is empty. PermissionError is macOS's word for a group of zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):  # not on macOS before Python 3.13
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._lock:
            self._signal_group(signal.SIGKILL)  # while the zombie still holds the group's number
            code = self._process.wait()
            self._is_reaped = True
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits for this end any more
            self._loop.call_soon_threadsafe(self._told, code)

    def _told(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(code)

    async def _pump(self, stream: Stream, source: IO[bytes], receive: Receive, ready: Ready) -> None:
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        try:
            while True:
                await ready()
                piece = await self._next_piece(reader)
                if not piece:
                    return
                receive(stream, piece)
        finally:
            transport.close()

    async def _next_piece(self, reader: asyncio.StreamReader) -> bytes:
        """The next bytes; none at the end, or when the worker has ended and the pipe stays quiet."""
        reading = asyncio.ensure_future(reader.read(CHUNK_BYTES))
        try:
            either: set[asyncio.Future[Any]] = {reading, self._exit}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return await asyncio.wait_for(reading, QUIET_SECONDS)
        except asyncio.TimeoutError:
            return b""
        except OSError as error:
            if error.errno == errno.EIO:  # how Linux says that a terminal's other side was closed
                return b""
            raise
        finally:
            reading.cancel()


def _open_pipe() -> tuple[IO[bytes], int]:
    reading_end, writing_end = os.pipe()
    return os.fdopen(reading_end, "rb", buffering=0), writing_end


def _open_terminal() -> tuple[IO[bytes], int]:
    """A pseudo-terminal as wide as ours, that passes bytes on as they are."""
    reading_end, writing_end = os.openpty()
    tty.setraw(writing_end)
    size = shutil.get_terminal_size()
    if hasattr(termios, "tcsetwinsize"):  # since Python 3.11
        termios.tcsetwinsize(writing_end, (size.lines, size.columns))
    return os.fdopen(reading_end, "rb", buffering=0), writing_end
