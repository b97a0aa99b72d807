"""What Ctrl-C and SIGTERM mean: once, stop after this round; twice, or too slowly, stop now.

Next file: `../cli/worker.py`, what a worker does with the signals that follow from it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from paceline.clusters.agent import Agent

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopsJob(Protocol):
    """The coordinator, as far as it is needed here."""

    def request_stop(self, *, immediate: bool, reason: str, exit_code: int = 130) -> None: ...


class Interruptions:
    """While this context lasts, signals to the launcher stop the job instead of the launcher.

    Args:
        coordinator: told to stop the job.
        agent: told to kill, when there is no more patience.
        say: a line for people.
        fall_silent: called at the first signal.
        grace_seconds: how long a clean stop may take.
    """

    def __init__(
        self,
        coordinator: StopsJob,
        agent: Agent,
        say: Callable[[str], None],
        fall_silent: Callable[[], None],
        *,
        grace_seconds: float,
    ) -> None:
        self._coordinator = coordinator
        self._agent = agent
        self._say = say
        self._fall_silent = fall_silent
        self._grace_seconds = grace_seconds
        self._reason: str | None = None
        self._exit_code = 0
        self._timer: asyncio.TimerHandle | None = None
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> Interruptions:
        self._loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup means what it says
                self._loop.add_signal_handler(number, self.interrupted, number)
                self._handled.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number in self._handled:
            self._loop.remove_signal_handler(number)

    def interrupted(self, number: signal.Signals) -> None:
        """A signal has come."""
        if self._reason is not None:
            self._stop_now("stopping now")
            return
        self._reason = "stopped by Ctrl-C" if number == signal.SIGINT else f"stopped by {number.name}"
        self._exit_code = 128 + number
        again = "press Ctrl-C again to stop now" if number == signal.SIGINT else "send it again to stop now"
        self._say(f"stopping after this round; {again}")
        self._fall_silent()
        self._coordinator.request_stop(immediate=False, reason=self._reason, exit_code=self._exit_code)
        self._timer = self._loop.call_later(self._grace_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._stop_now(f"the round did not end within {self._grace_seconds:g} s (--grace); stopping now")

    def _stop_now(self, words: str) -> None:
        assert self._reason is not None
        self._say(words)
        self._coordinator.request_stop(immediate=True, reason=self._reason, exit_code=self._exit_code)
        self._agent.kill()
