"""What reaches the pure part of the coordinator, and what it wants done. Nothing here touches a socket or a clock.

A connection is a number that the server gives; two processes that claim one identity have two connections. Next file:
`ballot.py`, then `quorum.py`: the two decisions; then `job.py`, what is known of a job.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.coordinator.messages import FromAgent, FromWorker, Order, ToWorker
from paceline.coordinator.rules import Outcome
from paceline.observability.events import Event
from paceline.types import WorkerIdentity

Connection = int


@dataclass(frozen=True)
class WorkerSaid:
    connection: Connection
    identity: WorkerIdentity
    message: FromWorker


@dataclass(frozen=True)
class AgentConnected:
    connection: Connection
    host: str


@dataclass(frozen=True)
class AgentSaid:
    connection: Connection
    message: FromAgent


@dataclass(frozen=True)
class Disconnected:
    """A worker's or an agent's connection ended."""

    connection: Connection
    reason: str


@dataclass(frozen=True)
class StopRequested:
    immediate: bool
    reason: str
    exit_code: int


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Input = WorkerSaid | AgentConnected | AgentSaid | Disconnected | StopRequested | Tick


@dataclass(frozen=True)
class Send:
    connection: Connection
    message: ToWorker | Order


@dataclass(frozen=True)
class Drop:
    """Close the connection after what was sent on it."""

    connection: Connection


@dataclass(frozen=True)
class Tell:
    """Emit an event."""

    event: Event


@dataclass(frozen=True)
class End:
    """The job has ended. Comes once."""

    outcome: Outcome


Effect = Send | Drop | Tell | End
