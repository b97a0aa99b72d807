"""How links over descriptors wait: one `poll` over all of them and the switch that aborts. Next file: `tcp.py`."""

from __future__ import annotations

import select
from collections.abc import Collection, Sequence
from typing import Protocol, cast

from paceline.communication.transfer import DuplexLink
from paceline.wire.waiting import READABLE, Interrupt

Wanted = list[tuple[int, int]]
"""Descriptors, and the events to wait for on each."""


class PollableLink(Protocol):
    """What `PollWaiter` asks of a link."""

    def arm(self, *, send: bool, receive: bool) -> Wanted | None:
        """Prepare for sleep: what to wait for. None: do not sleep, something can move now."""

    def disarm(self, ready: Collection[int]) -> None:
        """After the sleep, or instead of it; `ready` are the descriptors on which something has happened."""


class PollWaiter:
    """A `Waiter` over `poll`. `spin_seconds` of looking before sleeping saves a wake-up where cores are free."""

    def __init__(self, *, timeout_seconds: float, spin_seconds: float = 0.0) -> None:
        self.timeout_seconds = timeout_seconds
        self.spin_seconds = spin_seconds
        self.interrupt = Interrupt()

    def check(self) -> None:
        self.interrupt.check()

    def wait(self, sending: Sequence[DuplexLink], receiving: Sequence[DuplexLink], timeout_seconds: float) -> None:
        self.interrupt.check()
        poll = select.poll()
        poll.register(self.interrupt, READABLE)
        armed: list[PollableLink] = []
        ready: list[int] = []
        try:
            for link in {*sending, *receiving}:
                pollable = cast(PollableLink, link)
                armed.append(pollable)
                wanted = pollable.arm(send=link in sending, receive=link in receiving)
                if wanted is None:
                    return
                for descriptor, events in wanted:
                    poll.register(descriptor, events)
            ready = [descriptor for descriptor, _ in poll.poll(timeout_seconds * 1000)]
        finally:
            for pollable in armed:
                pollable.disarm(ready)
        self.interrupt.check()

    def abort(self, reason: str) -> None:
        self.interrupt.set(reason)

    def close(self) -> None:
        self.interrupt.close()
