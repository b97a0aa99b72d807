"""`paceline run` as a process under test, and scripts that meet the test at pipes instead of sleeping.

A script imports `meeting` (written beside it), calls `tell(text)` to say where it is and `wait()` to be held until the
test opens the gate, or for ever.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

MEETING = '''
"""The script's side of the meeting with its test."""
import os

WORKER = int(os.environ["PACELINE_WORKER_ID"])
INCARNATION = int(os.environ["PACELINE_INCARNATION"])
HERE = os.path.dirname(__file__)


def tell(text=""):
    """One line to the test."""
    with open(os.path.join(HERE, "told"), "w") as told:
        told.write(f"{WORKER} {INCARNATION} {os.getpid()} {text}\\n")


def wait():
    """Until the gate is opened."""
    with open(os.path.join(HERE, "gate")) as gate:
        gate.read()
'''

# Options for jobs in which workers are busy for long while the machine is: only a death is to count as one.
PATIENT = ("--lost-after", "120", "--start-timeout", "900")
PATIENCE_SECONDS = 60.0  # generous: machines are busy, and only failures wait that long


@dataclass(frozen=True)
class Told:
    """A line that a script has told."""

    worker: int
    incarnation: int
    pid: int
    text: str


@dataclass(frozen=True)
class Result:
    """How a launcher ended."""

    code: int
    out: str
    err: str


class Meeting:
    """The test's side: a folder with the script, and two named pipes."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text("from meeting import *\n" + script)
        (folder / "meeting.py").write_text(MEETING)
        os.mkfifo(folder / "told")
        os.mkfifo(folder / "gate")
        self._told = os.open(folder / "told", os.O_RDWR)  # both ends, so that nobody waits for us to open it
        self._text = b""

    def __enter__(self) -> Meeting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._told)

    def hear(self, count: int) -> list[Told]:
        """The next `count` lines, ordered by worker."""
        end = time.monotonic() + PATIENCE_SECONDS
        while self._text.count(b"\n") < count:
            ready, _, _ = select.select([self._told], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"only {self._text!r} was told within {PATIENCE_SECONDS:g} s"
            self._text += os.read(self._told, 65536)
        *lines, self._text = self._text.split(b"\n", count)
        told = [line.decode().split(" ", 3) for line in lines]
        return sorted(
            (Told(int(worker), int(number), int(pid), text) for worker, number, pid, text in told),
            key=lambda line: (line.worker, line.incarnation),
        )

    def open_gate(self) -> None:
        """Let all go who wait now."""
        os.close(os.open(self.folder / "gate", os.O_WRONLY))


class Launcher:
    """`paceline run ARGUMENTS` in a folder, killed at the end of the context if it still runs."""

    def __init__(self, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline", "run", "--log-dir", str(self.logs), *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(folder), **(environment or {})},
        )
        self._err = b""

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def await_message(self, text: str) -> None:
        """Read the launcher's stderr until `text` was said."""
        assert self.process.stderr is not None
        end = time.monotonic() + PATIENCE_SECONDS
        while text.encode() not in self._err:
            ready, _, _ = select.select([self.process.stderr], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} was not said within {PATIENCE_SECONDS:g} s, but {self._err!r}"
            piece = os.read(self.process.stderr.fileno(), 65536)
            assert piece, f"{text!r} was not said, but {self._err!r}"
            self._err += piece

    def wait(self, *, seconds: float = PATIENCE_SECONDS) -> Result:
        """Until it has ended."""
        out, err = self.process.communicate(timeout=seconds)
        return Result(self.process.returncode, out.decode(), (self._err + err).decode())

    def log(self, worker: int) -> str:
        return (self.logs / f"worker-{worker}.log").read_text()


def is_gone(pid: int) -> bool:
    """Whether that process runs no more (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"


def await_gone(*pids: int) -> None:
    """Until none of them runs."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not all(map(is_gone, pids)):
        assert time.monotonic() < end, f"of {pids}, {[pid for pid in pids if not is_gone(pid)]} still run"
        select.select([], [], [], 0.01)
