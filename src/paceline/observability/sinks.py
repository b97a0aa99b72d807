"""Where events go: a file with one line of JSON for each. Next file: `summary.py`, the events folded into one value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from paceline.errors import ConfigError
from paceline.observability.events import Event, to_record


class JsonLinesSink:
    """Writes each event to a file at once, so that a reader (or a crash) never misses what has happened.

    A context manager and a subscriber. A disk that fills up costs events, not the job.

    Args:
        path: made anew.
        complain: told once when the file can no longer be written.
    """

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self.path = path
        self._complain = complain
        self._has_complained = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(f"--events: cannot write {path}: {error.strerror or error}") from None

    def __enter__(self) -> JsonLinesSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __call__(self, event: Event) -> None:
        """Write one event."""
        try:
            self._file.write(json.dumps(to_record(event), default=str).encode() + b"\n")
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                self._complain(f"cannot write {self.path}: {error.strerror or error}; training goes on without it")
