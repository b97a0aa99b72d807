"""How a process ended, in words. Pure. Next file: `restart.py`, what follows from it."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Exit:
    """The end of one incarnation of a worker.

    Attributes:
        exit_code: what it returned; None when a signal killed it.
        signal: name of that signal, "SIGKILL".
        out_of_memory: the kernel killed it because memory ran out.
    """

    worker: int
    incarnation: int
    exit_code: int | None
    signal: str | None = None
    out_of_memory: bool = False

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0

    @property
    def told_signal(self) -> str | None:
        """The signal as it is reported and shown."""
        return f"{self.signal}, out of memory" if self.out_of_memory else self.signal

    @property
    def description(self) -> str:
        """The end of a sentence that begins with the worker: "was killed (SIGKILL)"."""
        if self.out_of_memory:
            return "was killed by the kernel: out of memory"
        if self.signal is not None:
            return f"was killed ({self.signal})"
        return f"exited with {self.exit_code}"


def exit_of(worker: int, incarnation: int, return_code: int, *, out_of_memory: bool = False) -> Exit:
    """From `subprocess`'s return code, where a negative number is a signal."""
    if return_code >= 0:
        return Exit(worker, incarnation, return_code)
    name = signal_name(-return_code)
    return Exit(worker, incarnation, None, name, out_of_memory and name == "SIGKILL")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # real-time signals have no names of their own
