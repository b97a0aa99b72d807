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
        newcomers: those of them that wait for the state.
        running: worker -> incarnation of the processes that exist.
        gone: (worker, incarnation) of those that ended.
        largest_group: the most workers that ever were in a group.
        is_ending: exits are no news any more.
    """

    job_id: str = ""
    workers: int = 0
    generation: int = 0
    group: tuple[int, ...] = ()
    newcomers: tuple[int, ...] = ()
    running: tuple[tuple[int, int], ...] = ()
    gone: frozenset[tuple[int, int]] = frozenset()
    largest_group: int = 0
    step: int | None = None
    rounds_committed: int = 0
    rounds_discarded: int = 0
    members_lost: int = 0
    members_joined: int = 0
    failure: str | None = None
    is_ending: bool = False


def fold(summary: JobSummary, event: Event) -> JobSummary:
    """The summary after `event`."""
    match event:
        case JobStarted(job_id, workers):
            return JobSummary(job_id=job_id, workers=workers)
        case WorkerStarted(worker, incarnation):
            running = {**dict(summary.running), worker: incarnation}
            return replace(summary, running=tuple(sorted(running.items())))
        case WorkerExited(worker, incarnation):
            running = {of: number for of, number in summary.running if (of, number) != (worker, incarnation)}
            gone = summary.gone | {(worker, incarnation)}
            return replace(summary, running=tuple(sorted(running.items())), gone=gone)
        case GroupFormed(generation, workers, newcomers):
            largest = max(summary.largest_group, len(workers))
            return replace(summary, generation=generation, group=workers, newcomers=newcomers, largest_group=largest)
        case MemberLost():
            return replace(summary, members_lost=summary.members_lost + 1)
        case MemberJoined(worker):
            newcomers = tuple(newcomer for newcomer in summary.newcomers if newcomer != worker)
            return replace(summary, newcomers=newcomers, members_joined=summary.members_joined + 1)
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
