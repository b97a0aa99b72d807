"""Facts, one frozen dataclass per thing that can happen. Logs, the event file, status and dashboard are views of them.

`emit` calls every subscriber of this process, in order; with none it costs nothing. Next file: `sinks.py`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Phase = Literal["work", "talk", "vote", "change"]


@dataclass(frozen=True)
class Event:
    """Something that happened."""


@dataclass(frozen=True)
class JobStarted(Event):
    job_id: str
    workers: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class JobEnded(Event):
    exit_code: int
    reason: str


@dataclass(frozen=True)
class WorkerStarted(Event):
    worker: int
    incarnation: int
    pid: int
    host: str


@dataclass(frozen=True)
class WorkerExited(Event):
    worker: int
    incarnation: int
    exit_code: int | None
    signal: str | None


@dataclass(frozen=True)
class WorkerAwaited(Event):
    """Someone waits for a worker that has not come yet."""

    worker: int
    of: int
    host: str
    seconds: float


@dataclass(frozen=True)
class WorkerFailed(Event):
    """A worker's own code raised."""

    worker: int
    summary: str
    traceback: str


@dataclass(frozen=True)
class GroupFormed(Event):
    generation: int
    workers: tuple[int, ...]
    newcomers: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class JobPaused(Event):
    """Fewer workers than the job needs; it goes on when enough are there."""

    workers: int
    needed: int


@dataclass(frozen=True)
class MemberLost(Event):
    worker: int
    incarnation: int
    generation: int
    reason: str


@dataclass(frozen=True)
class MemberJoined(Event):
    """A newcomer has received the state and takes part from the next round on."""

    worker: int
    incarnation: int
    generation: int
    seconds: float
    state_bytes: int


@dataclass(frozen=True)
class PhaseStarted(Event):
    """A member begins a phase of a round (in that process only; never forwarded)."""

    round: int
    phase: Phase


@dataclass(frozen=True)
class RoundCommitted(Event):
    """Told by rank 0. `step` is the optimizer's step for training rounds, None for others; `samples` of the group."""

    round: int
    step: int | None
    call: str
    generation: int
    size: int
    samples: int
    work_seconds: float
    talk_seconds: float
    vote_seconds: float
    change_seconds: float


@dataclass(frozen=True)
class RoundDiscarded(Event):
    round: int
    call: str
    generation: int
    reason: str


@dataclass(frozen=True)
class DataSharded(Event):
    """What was sharded how; told once per call."""

    source: str
    policy: str
    samples: int | None
    samples_per_rank: tuple[int, ...]


Subscriber = Callable[[Event], None]
_subscribers: list[Subscriber] = []


def subscribe(subscriber: Subscriber) -> None:
    """Call `subscriber` with every event of this process from now on."""
    _subscribers.append(subscriber)


def unsubscribe(subscriber: Subscriber) -> None:
    _subscribers.remove(subscriber)


def emit(event: Event) -> None:
    """Tell every subscriber."""
    for subscriber in _subscribers:
        subscriber(event)


def to_record(event: Event, *, time_seconds: float | None = None) -> dict[str, Any]:
    """The event as one JSON-ready record: {"time": seconds since 1970, "event": class name, fields ...}."""
    now = time.time() if time_seconds is None else time_seconds
    return {"time": now, "event": type(event).__name__, **dataclasses.asdict(event)}
