"""Events as sentences and as one summary; a whole job against a golden text."""

from __future__ import annotations

from pathlib import Path

from paceline.observability.events import (
    DataSharded,
    Event,
    GroupFormed,
    JobEnded,
    JobPaused,
    JobStarted,
    MemberJoined,
    MemberLost,
    RoundCommitted,
    RoundDiscarded,
    WorkerAwaited,
    WorkerExited,
    WorkerFailed,
    WorkerStarted,
)
from paceline.observability.narration import format_bytes, narrate
from paceline.observability.summary import JobSummary, fold

GOLDEN = Path(__file__).parent / "golden"

KILLED_AND_BACK: tuple[Event, ...] = (
    JobStarted("job", 3, ("train.py",)),
    *(WorkerStarted(worker, 1, 100 + worker, "here") for worker in range(3)),
    WorkerAwaited(1, 2, "here", 12.3),
    GroupFormed(1, (0, 1, 2), (), "all have started"),
    DataSharded("numpy arrays", "global shuffle", 1000, (334, 333, 333)),
    RoundCommitted(0, 1, "fit", 1, 3, 48, 0.1, 0.01, 0.001, 0.01),
    WorkerExited(2, 1, None, "SIGKILL"),
    MemberLost(2, 1, 1, "its process was killed"),
    GroupFormed(2, (0, 1), (), "worker 2 was killed; round 1 is discarded"),
    RoundDiscarded(1, "fit", 1, "worker 2 was killed; round 1 is discarded"),
    WorkerStarted(2, 2, 103, "here"),
    RoundCommitted(1, 2, "fit", 2, 2, 48, 0.1, 0.01, 0.001, 0.01),
    GroupFormed(3, (0, 1), (), "worker 2 asks to come in"),
    GroupFormed(4, (0, 1, 2), (2,), "worker 2 has come"),
    MemberJoined(2, 2, 4, 0.43, 12_300_000),
    RoundDiscarded(2, "fit", 4, "digests differ"),
    MemberLost(1, 1, 4, "silent for 3 s"),
    GroupFormed(5, (0, 2), (), "worker 1 is lost"),
    WorkerExited(1, 1, None, "SIGKILL, out of memory"),
    JobPaused(1, 2),
    WorkerExited(2, 2, 3, None),
    WorkerExited(0, 1, 0, None),
)


def told(events: tuple[Event, ...]) -> tuple[list[str], JobSummary]:
    summary, lines = JobSummary(), []
    for second, event in enumerate(events):
        line = narrate(event, summary, now=float(second))
        if line is not None:
            lines.append(("! " if line.is_warning else "  ") + line.text)
        summary = fold(summary, event, now=float(second))
    return lines, summary


def test_a_kill_and_a_return_are_told_in_plain_sentences() -> None:
    lines, _ = told(KILLED_AND_BACK)
    assert "\n".join(lines) + "\n" == (GOLDEN / "killed_and_back.txt").read_text()


def test_a_summary_is_what_the_events_amount_to() -> None:
    _, summary = told(KILLED_AND_BACK)
    assert summary == JobSummary(
        job_id="job",
        workers=3,
        generation=5,
        group=(0, 2),
        group_reason="worker 1 is lost",
        running=(),
        gone=frozenset({(2, 1), (1, 1), (2, 2), (0, 1)}),
        gone_since=((0, 23.0), (1, 18.0), (2, 22.0)),
        largest_group=3,
        step=2,
        rounds_committed=2,
        rounds_discarded=2,
        members_lost=2,
        members_joined=1,
    )


def test_after_a_failure_the_ends_of_the_others_are_no_news() -> None:
    failed = (
        WorkerFailed(1, "ValueError: bad", "Traceback ..."),
        WorkerExited(0, 1, None, "SIGTERM"),
        WorkerFailed(0, "PeerLost: rank 1", "Traceback ..."),
        JobEnded(1, "worker 1 failed"),
    )
    lines, summary = told(failed)
    assert lines == ["! worker 1 failed; stopping the others"]
    assert summary.failure == "worker 1: ValueError: bad"
    assert summary.is_ending


def test_many_ranks_are_told_as_a_range() -> None:
    event = DataSharded("tf.data", "slices of one stream", None, tuple(range(10, 30)))
    assert told((event,))[0] == ["  data: tf.data, samples of unknown number, slices of one stream; per rank: 10 to 29"]
    unknown = DataSharded("a generator", "slices", 5, ())
    assert told((unknown,))[0] == ["  data: a generator, 5 samples, slices"]


def test_sizes_are_told_in_units() -> None:
    assert [format_bytes(count) for count in (0, 999, 1500, 2_000_000, 3_210_000_000, 4 * 10**15)] == [
        *("0 bytes", "999 bytes", "1.5 KB", "2.0 MB", "3.2 GB", "4000.0 TB")
    ]
