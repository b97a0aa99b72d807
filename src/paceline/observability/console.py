"""Whose bytes go where on the terminal, so that many workers' lines do not tear each other's. Pure.

Worker 0 speaks through the launcher as if it had been started alone: its bytes pass untouched, progress bars included.
Everything else comes in whole lines, which wait while worker 0 is in the middle of one. Next file: `logging.py`, the
thread that writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stream = Literal["stdout", "stderr"]

LONGEST_LINE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Write:
    """Bytes to put on one of the launcher's streams."""

    stream: Stream
    data: bytes


class LineAssembler:
    """Turns pieces of output into whole lines, without their ends.

    Of a line that was drawn again and again with carriage returns (a progress bar), only the last state is kept.
    """

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes. A line without an end is cut at `LONGEST_LINE_BYTES`."""
        *complete, rest = (self._partial + data).split(b"\n")
        lines = [_last_state(line) for line in complete]
        kept = rest.rstrip(b"\r")  # the return may be the first half of a line's end
        rest = kept[kept.rfind(b"\r") + 1 :] + rest[len(kept) :]
        while len(rest) > LONGEST_LINE_BYTES:
            lines.append(rest[:LONGEST_LINE_BYTES])
            rest = rest[LONGEST_LINE_BYTES:]
        self._partial = rest
        return lines

    def finish(self) -> list[bytes]:
        """What is left when the output has ended."""
        rest, self._partial = _last_state(self._partial), b""
        return [rest] if rest else []


def _last_state(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Screen:
    """The launcher's two streams.

    Args:
        is_shared: both end on the same terminal, so that an open line on one is open on the other.
        patience_seconds: how long whole lines wait for worker 0 to end its line.
    """

    def __init__(self, *, is_shared: bool, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        shared = _Surface()
        self._surfaces = {"stdout": shared, "stderr": shared if is_shared else _Surface()}

    def pass_through(self, stream: Stream, data: bytes) -> list[Write]:
        """Worker 0's own bytes. Lines that waited come after the last line's end in them."""
        if not data:
            return []
        surface = self._surfaces[stream]
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            surface.is_open = True
            return [Write(stream, data)]
        surface.is_open = bool(tail)
        writes = [Write(stream, head + newline), *surface.release()]
        return [*writes, Write(stream, tail)] if tail else writes

    def line(self, stream: Stream, text: bytes, now: float) -> list[Write]:
        """A whole line of anyone else."""
        surface = self._surfaces[stream]
        surface.waiting.append(Write(stream, text + b"\n"))
        surface.waiting_since = surface.waiting_since if len(surface.waiting) > 1 else now
        return [] if surface.is_open else surface.release()

    def overdue(self, now: float) -> list[Write]:
        """Lines that have waited long enough: worker 0's open line is broken for them."""
        writes: list[Write] = []
        for surface in dict.fromkeys(self._surfaces.values()):
            if surface.waiting and now - surface.waiting_since >= self._patience_seconds:
                writes += [Write(surface.waiting[0].stream, b"\n"), *surface.release()]
                surface.is_open = False
        return writes

    def next_deadline(self) -> float | None:
        """When `overdue` will have something to say."""
        since = [surface.waiting_since for surface in self._surfaces.values() if surface.waiting]
        return min(since) + self._patience_seconds if since else None


class _Surface:
    """Where a stream ends: a terminal, a file, a pipe."""

    def __init__(self) -> None:
        self.is_open = False  # worker 0 is in the middle of a line
        self.waiting: list[Write] = []
        self.waiting_since = 0.0

    def release(self) -> list[Write]:
        released, self.waiting = self.waiting, []
        return released


def prefixed(worker: int, line: bytes) -> bytes:
    """
    >>> prefixed(2, b"hello")
    b'[2] hello'
    """
    return b"[%d] %s" % (worker, line)
