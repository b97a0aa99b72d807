"""The launcher's side of `guardian.py`: what must not outlive this process is told to one that will."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

END_SECONDS = 10.0


class Guard:
    """A context manager; after it, and after this process's death by any means, the folder and the groups are gone.

    Args:
        folder: removed at the end.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_there = True

    def __enter__(self) -> Guard:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        self._tell(f"={self._folder}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def started(self, group: int) -> None:
        self._tell(f"+{group}")

    def ended(self, group: int) -> None:
        self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        if not self._is_there:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode(errors="surrogateescape") + b"\n")
        except BrokenPipeError:
            self._is_there = False  # someone killed it: the job goes on with the kernel's help alone
