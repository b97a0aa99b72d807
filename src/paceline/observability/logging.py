"""Workers' output, kept and shown: one log file per worker, and the launcher's own terminal.

All writing happens in one thread, because a terminal that is paused or a slow disk must never stop the event loop
that answers heartbeats. When that thread falls behind, `ready` holds back the reading of workers' pipes, which is what
an ordinary pipeline does. Next file: `narration.py`, the launcher's own sentences.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from paceline.errors import ConfigError
from paceline.observability.console import LineAssembler, Screen, Stream, Write, prefixed

LIMIT_BYTES = 4 * 1024 * 1024  # of output that waits to be written
TERMINAL_PATIENCE_SECONDS = 0.3
FILE_PATIENCE_SECONDS = 5.0  # nobody watches a file grow, so worker 0's lines are broken only when they hang

Complaint = Callable[[str], None]


class RankLog:
    """One worker's whole output, all its incarnations, as they came.

    A disk that is full costs log lines, never the job: what could not be written is counted, and said in the file
    once there is room again.
    """

    def __init__(self, path: Path, complain: Complaint) -> None:
        self.path = path
        self._complain = complain
        self._file = open_for_appending(path, "--log-dir")
        self._lost_bytes = 0
        self._has_complained = False

    def write(self, data: bytes) -> None:
        try:
            if self._lost_bytes:
                _write_all(self._file, f"\n=== paceline: {self._lost_bytes} bytes are missing here ===\n".encode())
                self._lost_bytes = 0
            _write_all(self._file, data)
        except OSError as error:
            self._lost_bytes += len(data)
            if not self._has_complained:
                self._has_complained = True
                self._complain(f"cannot write {self.path}: {error.strerror or error}; training goes on without it")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk has been told of above
            self._file.close()


def log_file(directory: Path, worker: int) -> Path:
    """Where the output of `worker` is kept."""
    return directory.absolute() / f"worker-{worker}.log"


def open_for_appending(path: Path, option: str) -> IO[bytes]:
    """An unbuffered file. Raises `ConfigError` in the name of `option` when it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab", buffering=0)
    except OSError as error:
        raise ConfigError(f"{option}: cannot write {path}: {error.strerror or error}") from None


def _write_all(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


class Output:
    """Everything that workers and launcher say, in one thread's hands. A context manager.

    Args:
        log_directory: one file per worker goes there; it is made when missing.
        stdout, stderr: file descriptors of the launcher.
        is_quiet: leave out what the launcher says that is not a warning.
    """

    def __init__(
        self, log_directory: Path, workers: tuple[int, ...], *, stdout: int = 1, stderr: int = 2, is_quiet: bool = False
    ) -> None:
        self._logs = {
            worker: RankLog(log_file(log_directory, worker), self._complain_from_thread) for worker in workers
        }
        self._descriptors = {"stdout": stdout, "stderr": stderr}
        is_terminal = os.isatty(stdout)
        self._screen = Screen(
            is_shared=_same_file(stdout, stderr),
            patience_seconds=TERMINAL_PATIENCE_SECONDS if is_terminal else FILE_PATIENCE_SECONDS,
        )
        self._is_quiet = is_quiet
        self._assemblers: dict[tuple[int, Stream], LineAssembler] = {}
        self._broken: set[Stream] = set()
        self._queue: deque[tuple[int, Callable[[], list[Write]]]] = deque()
        self._queued_bytes = 0
        self._is_closing = False
        self._changed = threading.Condition()
        self._room: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-output", daemon=True)

    def __enter__(self) -> Output:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------- called by the event loop

    def started(self, worker: int, incarnation: int, pid: int) -> None:
        """A new incarnation begins: its log gets a line that says so."""
        moment = time.strftime("%Y-%m-%d %H:%M:%S %z")
        header = f"=== paceline: worker {worker}, incarnation {incarnation}, pid {pid}, {moment} ===\n".encode()
        self._enqueue(len(header), lambda: self._log(worker, header))

    def write(self, worker: int, stream: Stream, data: bytes) -> None:
        """A piece of a worker's output. Does not wait; await `ready` before the next."""
        self._enqueue(len(data), lambda: self._show(worker, stream, data))

    def ended(self, worker: int) -> None:
        """This incarnation writes no more: an unfinished line is shown as it is."""
        self._enqueue(0, lambda: self._finish(worker))

    def say(self, text: str, *, is_warning: bool = False) -> None:
        """A line of the launcher's own, on stderr."""
        if is_warning or not self._is_quiet:
            line = f"paceline: {text}".encode()
            self._enqueue(len(line), lambda: self._screen.line("stderr", line, time.monotonic()))

    def show(self, text: str) -> None:
        """Text that is not the launcher's own, a traceback, line by line on stderr."""
        lines = [line.encode() for line in text.splitlines()]
        now = time.monotonic()
        self._enqueue(len(text), lambda: [write for line in lines for write in self._screen.line("stderr", line, now)])

    async def ready(self) -> None:
        """Wait until there is room for more. The limit on this wait is the reader of the terminal."""
        self._loop = self._loop or asyncio.get_running_loop()
        while self._queued_bytes > LIMIT_BYTES:
            self._room = self._room or asyncio.Event()
            self._room.clear()
            if self._queued_bytes > LIMIT_BYTES:
                await self._room.wait()

    def close(self, *, timeout_seconds: float = 600.0) -> None:
        """Write what waits, end the thread, close the logs. A reader that does not read is waited for only so long."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_seconds)
        for log in self._logs.values():
            log.close()

    def _enqueue(self, num_bytes: int, action: Callable[[], list[Write]]) -> None:
        with self._changed:
            self._queue.append((num_bytes, action))
            self._queued_bytes += num_bytes
            self._changed.notify()

    # ------------------------------------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue and not self._is_closing:
                    deadline = self._screen.next_deadline()
                    self._changed.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
                batch = list(self._queue)
                self._queue.clear()
                finished = self._is_closing and not batch
            for num_bytes, action in batch:
                self._put(action())
                self._make_room(num_bytes)
            self._put(self._screen.overdue(float("inf") if finished else time.monotonic()))
            if finished:
                return

    def _make_room(self, num_bytes: int) -> None:
        with self._changed:
            was_full = self._queued_bytes > LIMIT_BYTES
            self._queued_bytes -= num_bytes
            has_room = was_full and self._queued_bytes <= LIMIT_BYTES
        if has_room and self._room is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it all who wait for room
                self._loop.call_soon_threadsafe(self._room.set)

    def _show(self, worker: int, stream: Stream, data: bytes) -> list[Write]:
        self._log(worker, data)
        if worker == 0:
            return self._screen.pass_through(stream, data)
        assembler = self._assemblers.setdefault((worker, stream), LineAssembler())
        return self._lines(worker, stream, assembler.feed(data))

    def _finish(self, worker: int) -> list[Write]:
        writes: list[Write] = []
        for (of, stream), assembler in self._assemblers.items():
            if of == worker:
                writes += self._lines(worker, stream, assembler.finish())
        return writes

    def _lines(self, worker: int, stream: Stream, lines: list[bytes]) -> list[Write]:
        now = time.monotonic()
        return [write for line in lines for write in self._screen.line(stream, prefixed(worker, line), now)]

    def _log(self, worker: int, data: bytes) -> list[Write]:
        self._logs[worker].write(data)
        return []

    def _complain_from_thread(self, text: str) -> None:
        self._put(self._screen.line("stderr", f"paceline: {text}".encode(), time.monotonic()))

    def _put(self, writes: list[Write]) -> None:
        for stream, run in itertools.groupby(writes, key=lambda write: write.stream):
            if stream in self._broken:
                continue
            try:
                _write_descriptor(self._descriptors[stream], b"".join(write.data for write in run))
            except OSError as error:
                # Nobody reads any more (`| head`, a closed terminal). The job goes on; its logs are whole.
                self._broken.add(stream)
                if stream == "stdout":
                    self._complain_from_thread(f"cannot write to stdout: {error.strerror}; see the log files")


def _write_descriptor(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # someone who shares our terminal has made it non-blocking
            select.select([], [descriptor], [])


def _same_file(one: int, other: int) -> bool:
    """Both descriptors end at the same terminal, pipe or file."""
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False


class LauncherLog(logging.Handler):
    """Warnings of Paceline's own modules in the launcher's process, as the launcher's lines.

    Args:
        is_silent: true while nothing is to be said: a job that is taken down breaks many connections.
    """

    def __init__(self, output: Output, is_silent: Callable[[], bool]) -> None:
        super().__init__(logging.WARNING)
        self._output = output
        self._is_silent = is_silent

    def emit(self, record: logging.LogRecord) -> None:
        if not self._is_silent():
            self._output.say(record.getMessage(), is_warning=True)
