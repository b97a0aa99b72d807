"""The launcher's own sentences: an event, and what was known before it, become a line or silence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.observability.events import (
    DataSharded,
    Event,
    GroupFormed,
    JobPaused,
    MemberJoined,
    MemberLost,
    RoundDiscarded,
    WorkerAwaited,
    WorkerExited,
    WorkerFailed,
    WorkerStarted,
)
from paceline.observability.summary import JobSummary

CONNECTION_CLOSED = "its connection closed"  # the coordinator's words when a process has ended, most likely


@dataclass(frozen=True)
class Line:
    """One line for people. Warnings are shown even to those who asked for quiet."""

    text: str
    is_warning: bool = False


def narrate(event: Event, before: JobSummary, *, now: float) -> Line | None:
    """What to say about `event`, which happened at `now`. `before` is the summary without it."""
    if before.is_ending:
        return None  # what happens while a job is taken down has one cause, which was told
    match event:
        case WorkerStarted(worker, incarnation, pid) if incarnation > 1:
            return Line(f"worker {worker} is started again (incarnation {incarnation}, process {pid})")
        case WorkerExited(worker, _, exit_code, signal):
            text = how_it_ended(exit_code, signal)
            return None if text is None else Line(f"worker {worker} {text}", is_warning=True)
        case WorkerAwaited(worker, of, host, seconds):
            return Line(f"waiting for worker {worker} of {of} ({host}, {seconds:.0f} s)")
        case GroupFormed(_, workers, (), _) if workers == before.group:
            return None  # the same members have met again, on the way to something that will be told
        case GroupFormed(generation, workers, _, reason):
            return Line(_group(generation, len(workers), reason, before))
        case JobPaused(workers, needed):
            are = "worker is" if workers == 1 else "workers are"
            return Line(f"paused: {workers} {are} there, {needed} are needed (--min-workers)", is_warning=True)
        case MemberLost(worker, incarnation, _, reason):
            if (worker, incarnation) in before.gone or reason == CONNECTION_CLOSED:
                return None  # its end was told a moment ago, or will be
            return Line(f"worker {worker} is lost: {reason}", is_warning=True)
        case MemberJoined(worker, _, _, seconds, state_bytes):
            away = now - dict(before.gone_since).get(worker, now - seconds)
            state = f", with {format_bytes(state_bytes)} of state in {seconds:.1f} s" if state_bytes else ""
            return Line(f"worker {worker} joined after {away:.1f} s{state}")
        case RoundDiscarded(number, call, _, reason):
            if reason == before.group_reason:
                return None  # the coordinator has ruled so when it formed this group, and that was told
            return Line(f"round {number} of {call} is taken again: {reason}")
        case DataSharded(source, policy, samples, samples_per_rank):
            total = "samples of unknown number" if samples is None else f"{samples} samples"
            return Line(f"data: {source}, {total}, {policy}{_per_rank(samples_per_rank)}")
        case WorkerFailed(worker):
            return Line(f"worker {worker} failed; stopping the others", is_warning=True)
    return None


def how_it_ended(exit_code: int | None, signal: str | None) -> str | None:
    """The end of a sentence about a process; None for a good end.

    >>> how_it_ended(None, "SIGKILL"), how_it_ended(3, None), how_it_ended(0, None)
    ('was killed (SIGKILL)', 'exited with 3', None)
    """
    if signal is not None and "out of memory" in signal:
        return "was killed by the kernel: out of memory"
    if signal is not None:
        return f"was killed ({signal})"
    return f"exited with {exit_code}" if exit_code else None


def format_bytes(count: int) -> str:
    """
    >>> format_bytes(900), format_bytes(12_300_000)
    ('900 bytes', '12.3 MB')
    """
    if count < 1000:
        return f"{count} bytes"
    size = count / 1000
    for unit in ("KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _group(generation: int, size: int, reason: str, before: JobSummary) -> str:
    if before.generation == 0:
        return f"group of {size} formed"
    again = " again" if size == before.largest_group and len(before.group) < size else ""
    return f"group of {size}{again} (generation {generation}): {reason}"


def _per_rank(counts: tuple[int, ...]) -> str:
    if not counts:
        return ""
    if len(counts) <= 8:
        return f"; per rank: {', '.join(map(str, counts))}"
    return f"; per rank: {min(counts)} to {max(counts)}"
