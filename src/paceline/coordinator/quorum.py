"""Which group can be formed now, or for whom it has to wait: one pure function. Next file: `job.py`.

The first group needs every place that may still be filled. Every later group is the survivors of the last one, in
their order, and then whoever waits at the call that they are in. It is formed only when every survivor has met: what
a member that is alive has committed must be known before anything is ruled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.coordinator.protocols import Report
from paceline.types import Member, WorkerIdentity


@dataclass(frozen=True)
class Candidate:
    """A live worker. `report` is None while it has not met; `at_end`: its script has come to its end."""

    member: Member
    report: Report | None
    at_end: bool = False

    @property
    def holds_state(self) -> bool:
        return self.report is not None and self.report.committed_rounds >= 0


@dataclass(frozen=True)
class Attendance:
    """All that the decision depends on.

    Attributes:
        generation: of the group that meets; 0 before the first.
        survivors: its members that are alive and have not left, in rank order.
        outsiders: other live workers, by number.
        absent: places that are empty now and may be filled.
        call: the call that holders of state are in or wait to begin.
        state_exists: a round or a call of this job has ended, so a fresh process is not as good as any.
        min_workers: fewer do not form a group.
        tail_undone: the generation's rank 0 was lost before it came to the end of the script.
    """

    generation: int
    survivors: Sequence[Candidate]
    outsiders: Sequence[Candidate]
    absent: Sequence[int]
    call: int
    state_exists: bool
    min_workers: int
    tail_undone: bool = False


@dataclass(frozen=True)
class Decision:
    """What happens next.

    Attributes:
        kind: `form` the group; `wait` for members to meet, or for an heir of rank 0; `pause` until enough workers are
            there; or what the job needs is `lost`.
        members: of the next group, in rank order; empty unless `form`.
        newcomers: those of them that need the state of the others.
        awaited: workers whose coming would change this.
        reason: for people.
        num_ready: how many could be in the group.
    """

    kind: Literal["form", "wait", "pause", "lost"]
    members: tuple[Member, ...] = ()
    newcomers: frozenset[WorkerIdentity] = frozenset()
    awaited: tuple[int, ...] = ()
    reason: str = ""
    num_ready: int = 0


def decide(attendance: Attendance) -> Decision:
    """Decide about the next group."""
    if attendance.generation == 0:
        return _decide_first(attendance)
    awaited = tuple(candidate.member.worker for candidate in attendance.survivors if candidate.report is None)
    if awaited:
        return Decision("wait", awaited=awaited, reason=f"{name_workers(awaited)} must meet")
    somebody_holds = any(candidate.holds_state for candidate in attendance.survivors)
    if attendance.state_exists and not somebody_holds:
        return Decision("lost", reason="nobody is left who holds the state, and there is no checkpoint")
    survivors = [
        candidate for candidate in attendance.survivors if candidate.holds_state or _fits(candidate, attendance)
    ]
    admitted = [candidate for candidate in attendance.outsiders if _fits(candidate, attendance)]
    if survivors and all(candidate.at_end for candidate in survivors):
        return _decide_at_end(survivors, attendance)
    if len(survivors + admitted) < attendance.min_workers:
        return _pause(len(survivors + admitted), attendance)
    if attendance.tail_undone:
        survivors.sort(key=lambda candidate: candidate.at_end)  # who still has to go to the end does it as rank 0
    return _form(survivors, admitted)


def _decide_at_end(survivors: list[Candidate], attendance: Attendance) -> Decision:
    """The script is done, and newcomers are not needed any more: unless rank 0 was lost on its last way. Whoever comes
    then and still has it before him is the next rank 0."""
    if not attendance.tail_undone:
        return _form(survivors, [])
    heirs = [candidate for candidate in attendance.outsiders if not candidate.at_end]
    ready = [candidate for candidate in heirs if _fits(candidate, attendance)]
    if ready:
        return _form(survivors, ready, heirs_first=True)
    awaited = tuple(sorted([*(candidate.member.worker for candidate in heirs), *attendance.absent]))
    if awaited:
        return Decision("wait", awaited=awaited, reason="rank 0 was lost before the end of the script")
    undone = (
        "rank 0 was lost before it came to the end of the script, and nobody is left to do in its place what is due"
    )
    return Decision("lost", reason=f"{undone} there")


def _form(survivors: list[Candidate], admitted: list[Candidate], *, heirs_first: bool = False) -> Decision:
    group = admitted + survivors if heirs_first else survivors + admitted
    somebody_holds = any(candidate.holds_state for candidate in survivors)
    return Decision(
        "form",
        members=tuple(candidate.member for candidate in group),
        newcomers=frozenset(
            candidate.member.identity for candidate in group if somebody_holds and not candidate.holds_state
        ),
        reason=_describe(len(survivors), [candidate.member.worker for candidate in admitted]),
    )


def _decide_first(attendance: Attendance) -> Decision:
    ready = [candidate for candidate in attendance.outsiders if candidate.report is not None]
    not_ready = [candidate.member.worker for candidate in attendance.outsiders if candidate.report is None]
    awaited = tuple(sorted([*not_ready, *attendance.absent]))
    if awaited:
        return Decision("wait", awaited=awaited, reason=f"{name_workers(awaited)} must start")
    if len(ready) < attendance.min_workers:
        return _pause(len(ready), attendance)
    members = tuple(candidate.member for candidate in ready)
    return Decision("form", members=members, reason=_describe(0, [member.worker for member in members]))


def _fits(candidate: Candidate, attendance: Attendance) -> bool:
    """Whether a worker without state can be taken in where the others are."""
    return candidate.report is not None and candidate.report.call == attendance.call


def _pause(num_ready: int, attendance: Attendance) -> Decision:
    reason = f"paused: {num_ready} of {attendance.min_workers} workers"
    return Decision("pause", awaited=tuple(attendance.absent), reason=reason, num_ready=num_ready)


def _describe(num_survivors: int, admitted: Sequence[int]) -> str:
    if not admitted:
        return f"{num_survivors} go on" if num_survivors != 1 else "1 goes on"
    joins = f"{name_workers(admitted)} {'join' if len(admitted) > 1 else 'joins'}"
    return f"{num_survivors} go on, {joins}" if num_survivors else joins


def name_workers(workers: Sequence[int]) -> str:
    """ "worker 2", "workers 0, 2"; long lists are cut."""
    shown = ", ".join(map(str, workers[:10])) + (f" and {len(workers) - 10} more" if len(workers) > 10 else "")
    return f"worker{'s' if len(workers) != 1 else ''} {shown}"
