"""Runs cases as plain Keras and as jobs of N workers, once each, and hands out what they have kept.

A case that fails ends its job; its traceback is kept, and another job runs the cases that are left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).with_name("cases.py")
SEED = "7"
SECONDS_FOR_A_JOB = 1500.0  # on a machine that is busy with other things
TALK_SECONDS = 300.0  # longer than anything that a rank does alone here
PATIENCE = ("--lost-after", "120")  # nobody is lost here, however busy the machine

Kept = Mapping[str, np.ndarray]


@dataclass
class Results:
    """What the cases of one job have kept: case -> one mapping for each worker. `failures` has texts for the others."""

    ranks: dict[str, list[Kept]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def plain(names: Sequence[str], folder: Path) -> Launch:
    """Plain Keras in one process."""
    return Launch([sys.executable, str(SCRIPT), "--mode", "plain"], names, folder, workers=[0])


def job(
    workers: int,
    names: Sequence[str],
    folder: Path,
    *,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    survivors: Sequence[int] | None = None,
) -> Launch:
    """One job of `paceline run`. Only what `survivors` (by default all workers) have kept is read."""
    command = [
        *(sys.executable, "-m", "paceline", "run", "-n", str(workers), "--seed", SEED, "--quiet"),
        *("--set", f"talk_timeout_seconds={TALK_SECONDS}", "--log-dir", str(folder / "logs"), *PATIENCE, *options),
        *(str(SCRIPT), "--mode", "paceline"),
    ]
    readers = range(workers) if survivors is None else survivors
    return Launch(command, names, folder, workers=readers, environment=environment)


class Launch:
    """Cases that are being run; `results` waits for them."""

    def __init__(
        self,
        command: Sequence[str],
        names: Sequence[str],
        folder: Path,
        *,
        workers: Sequence[int],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = list(command)
        self._folder = folder
        self._workers = workers
        self._environment = environment or {}
        self._left = list(names)
        self._results = Results()
        folder.mkdir(parents=True, exist_ok=True)
        self._process = self._start()

    def results(self) -> Results:
        while True:
            try:
                code = self._process.wait(SECONDS_FOR_A_JOB)
            except BaseException:
                self.stop()
                raise
            if self._collect(code):
                return self._results
            self._process = self._start()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._folder / "said.txt").open("wb") as said:
            return subprocess.Popen(
                [*self._command, "--out", str(self._folder), "--cases", ",".join(self._left)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **self._environment},
            )

    def _collect(self, code: int) -> bool:
        """Read what the process has left. Returns whether nothing more is to be run."""
        for name in self._left:
            if (kept := self._read(name)) is not None:
                self._results.ranks[name] = kept
        missing = [name for name in self._left if name not in self._results.ranks]
        if not missing:
            return True
        trace = self._folder / f"{missing[0]}.failed"
        said = (self._folder / "said.txt").read_text(errors="replace")[-4000:]
        self._results.failures[missing[0]] = trace.read_text() if trace.exists() else f"exit code {code}\n{said}"
        self._left = missing[1:]
        return not self._left

    def _read(self, name: str) -> list[Kept] | None:
        paths = [self._folder / f"{name}.worker{worker}.npz" for worker in self._workers]
        return [dict(np.load(path)) for path in paths] if all(path.exists() for path in paths) else None
