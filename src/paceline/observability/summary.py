"""A job in one value: what its events so far amount to. Pure. Next file: `narration.py`, the same as sentences."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.observability.events import (
    Event,
    GroupFormed,
    JobEnded,
    JobStarted,
    MemberJoined,
    MemberLost,
    RoundCommitted,
    RoundDiscarded,
    WorkerExited,
    WorkerFailed,
    WorkerStarted,
)


@dataclass(frozen=True)
class JobSummary:
    """What is known of a job.

    Attributes:
        group: workers of the newest generation, in rank order.
        group_reason: why it was formed.
        newcomers: those of them that wait for the state.
        running: worker -> incarnation of the processes that exist.
        gone: (worker, incarnation) of those that ended.
        gone_since: (worker, when) of those that were lost and have not joined again.
        largest_group: the most workers that ever were in a group.
        is_ending: exits are no news any more.
    """

    job_id: str = ""
    workers: int = 0
    generation: int = 0
    group: tuple[int, ...] = ()
    group_reason: str = ""
    newcomers: tuple[int, ...] = ()
    running: tuple[tuple[int, int], ...] = ()
    gone: frozenset[tuple[int, int]] = frozenset()
    gone_since: tuple[tuple[int, float], ...] = ()
    largest_group: int = 0
    step: int | None = None
    rounds_committed: int = 0
    rounds_discarded: int = 0
    members_lost: int = 0
    members_joined: int = 0
    failure: str | None = None
    is_ending: bool = False


def fold(summary: JobSummary, event: Event, *, now: float) -> JobSummary:
    """The summary after `event`, which happened at `now` (seconds of any clock)."""
    match event:
        case JobStarted(job_id, workers):
            return JobSummary(job_id=job_id, workers=workers)
        case WorkerStarted(worker, incarnation):
            running = {**dict(summary.running), worker: incarnation}
            return replace(summary, running=tuple(sorted(running.items())))
        case WorkerExited(worker, incarnation):
            running = {of: number for of, number in summary.running if (of, number) != (worker, incarnation)}
            gone = summary.gone | {(worker, incarnation)}
            summary = _without(summary, worker, now)
            return replace(summary, running=tuple(sorted(running.items())), gone=gone)
        case GroupFormed(generation, workers, newcomers, reason):
            largest = max(summary.largest_group, len(workers))
            summary = replace(summary, generation=generation, group=workers, group_reason=reason)
            return replace(summary, newcomers=newcomers, largest_group=largest)
        case MemberLost(worker):
            return replace(_without(summary, worker, now), members_lost=summary.members_lost + 1)
        case MemberJoined(worker):
            newcomers = tuple(newcomer for newcomer in summary.newcomers if newcomer != worker)
            gone_since = tuple((of, since) for of, since in summary.gone_since if of != worker)
            joined = summary.members_joined + 1
            return replace(summary, newcomers=newcomers, gone_since=gone_since, members_joined=joined)
        case RoundCommitted(step=step):
            newest = summary.step if step is None else step
            return replace(summary, step=newest, rounds_committed=summary.rounds_committed + 1)
        case RoundDiscarded():
            return replace(summary, rounds_discarded=summary.rounds_discarded + 1)
        case WorkerFailed(worker, text):
            return replace(summary, failure=summary.failure or f"worker {worker}: {text}", is_ending=True)
        case JobEnded():
            return replace(summary, is_ending=True)
    return summary


def _without(summary: JobSummary, worker: int, now: float) -> JobSummary:
    """Note since when `worker` is gone; the first sign of it counts."""
    since = {worker: now, **dict(summary.gone_since)}
    return replace(summary, gone_since=tuple(sorted(since.items())))
