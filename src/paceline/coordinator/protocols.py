"""What a worker needs of the coordinator. `client.py` speaks to the real one; `solo.py` is a group of one, alone.

The words: a worker *meets* the coordinator with a `Report` of where it stands, and gets a `Ruling`: the next group,
and how its open round ends. Calls (`fit`, `evaluate`, `allreduce` ...) are numbered 0, 1, 2 ... in the order in which
the script makes them; a restarted worker replays the results of the calls that ended without it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paceline.types import Group, Member, WorkerIdentity


class RoundState(enum.Enum):
    """Where a worker stands in its open round."""

    BOUNDARY = "boundary"  # no round is open
    WORKING = "working"  # work or talk: this member has not voted
    VOTED = "voted"  # it sent its yes, holds the whole proposal, and does not know how the vote ended


class Settlement(enum.Enum):
    """How a worker's open round ends."""

    NOTHING = "nothing"  # it had none open
    COMMIT = "commit"
    DISCARD = "discard"


@dataclass(frozen=True)
class Report:
    """What a worker says when it meets the coordinator.

    Attributes:
        generation: the last generation it was in; 0 before the first.
        call: number of the call that it is in, or waits to begin.
        committed_rounds: rounds of this job that its state holds; -1 when it never took part and holds no state.
        state: of its open round, which is number `committed_rounds`.
        suspects: peers that did not answer it.
        reason: for people: why it came.
        call_agreed: every member has entered `call`, so a member that does not meet is stuck and not merely busy with
            the user's own code before the call; it decides how long it is waited for.
        admits: a newcomer may be taken in here. Not inside a call that a callback makes within `fit`: a newcomer
            could not find its place in it.
    """

    generation: int
    call: int
    committed_rounds: int
    state: RoundState
    suspects: tuple[WorkerIdentity, ...] = ()
    reason: str = ""
    call_agreed: bool = True
    admits: bool = True


@dataclass(frozen=True)
class Ruling:
    """The next group, and how the open round ends."""

    group: Group
    settlement: Settlement
    reason: str


@dataclass(frozen=True)
class Replay:
    """The call that the worker waits to begin has ended without it; `result` is what it returned (or None when it
    was too large to be kept).

    `takes_over`: the others have come to the end of the script and wait for somebody to do what a lost rank 0 still had
    to do there. It was the last call: take the state before going on from here, as rank 0.
    """

    call: int
    result: bytes | None
    takes_over: bool = False


@dataclass(frozen=True)
class Verdict:
    """Pushed: this generation is over; abort its talk and meet. `lost` is empty when a member that is alive asks for
    it, because its talk failed."""

    generation: int
    lost: tuple[WorkerIdentity, ...]
    reason: str


@dataclass(frozen=True)
class Stop:
    """Pushed: the job stops. `immediate`: now; otherwise at the next round's end, all together."""

    reason: str
    exit_code: int
    immediate: bool


Notice = Verdict | Stop


class Membership(Protocol):
    """A worker's side of the coordinator. Blocking, used by one thread, except `notices` (called from the client's
    own thread) and the two cheap properties.

    Every wait ends by its deadline. Raises `CoordinatorLost`, `Fenced`, `JobStopped`, `StartTimeout`,
    `AuthenticationError`.
    """

    @property
    def identity(self) -> WorkerIdentity: ...

    @property
    def expected_workers(self) -> int:
        """How many workers the job was launched with."""

    @property
    def newest_generation(self) -> int:
        """The newest generation this worker has heard of: it exceeds the current one when a change of membership
        waits for the round's end."""

    def join(self, member: Member, *, on_notice: Callable[[Notice], None]) -> int:
        """Register, start heartbeats and listen for notices. Returns the current generation of the job (0 when no
        group was formed yet, so that a greater number tells a restarted worker that it is late)."""

    def meet(self, report: Report) -> Ruling | Replay:
        """Say where this worker stands; wait for the next group. `Replay` comes only to a worker that holds no
        state."""

    def record_call(self, call: int, result: bytes) -> None:
        """Tell that `call` has ended with `result`, for workers that come later. Does not wait."""

    def report_end(self) -> None:
        """Tell that this worker's script has come to its end and only waits for the others. Does not wait."""

    def report_event(self, event: object) -> None:
        """Forward an event of `observability.events` to the job's event file and status. Does not wait."""

    def fail(self, summary: str, traceback: str) -> None:
        """This worker's own code raised: the job must stop and show this traceback. Waits until it was received."""

    def leave(self) -> None:
        """This worker's script has ended well, or stopped when it was asked to. Waits until it was received; then
        closes the connection."""

    def close(self) -> None:
        """Close without a word (the coordinator will notice)."""
