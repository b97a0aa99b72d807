"""What the coordinator is told when a job starts, and what it says when the job has ended. Next file: `messages.py`."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError


@dataclass(frozen=True)
class JobRules:
    """The rules of one job.

    Attributes:
        workers: places 0..workers-1; the first group is formed when all of them have met.
        min_workers: with fewer the job pauses (or, at the start, goes on waiting).
        hosts: host of each place as launched, for messages about workers that never came; may be empty.
        start_timeout_seconds: how long the first worker that is ready waits for the others to get ready, and how long
            members wait for one that is between calls, in the user's own code.
        heartbeat_seconds: how often a worker that has joined says that it is there.
        lost_after_seconds: silence after which a joined worker is lost.
        progress_timeout_seconds: how long the others wait for a member that is alive, inside a call, and does not meet.
        pause_timeout_seconds: how long a job with fewer than `min_workers` waits for someone to join.
        notice_seconds: how often it is said again what is being waited for.
        max_recorded_bytes: how much is kept of the results of ended calls; what does not fit is replayed as None.
    """

    workers: int
    min_workers: int = 1
    hosts: tuple[str, ...] = ()
    start_timeout_seconds: float = 300.0
    heartbeat_seconds: float = 0.5
    lost_after_seconds: float = 3.0
    progress_timeout_seconds: float = 600.0  # a long step, or the tracing of one, is no fault
    pause_timeout_seconds: float = 3600.0
    notice_seconds: float = 5.0
    max_recorded_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"a job needs at least one worker; got workers={self.workers}")
        if not 1 <= self.min_workers <= self.workers:
            raise ConfigError(
                f"min_workers={self.min_workers} cannot be used with workers={self.workers}: "
                f"give a number from 1 to {self.workers}"
            )
        if self.hosts and len(self.hosts) != self.workers:
            raise ConfigError(f"hosts names {len(self.hosts)} places, but the job has {self.workers} workers")
        if self.lost_after_seconds < 2 * self.heartbeat_seconds:
            raise ConfigError(
                f"lost_after_seconds={self.lost_after_seconds} would lose a worker whose heartbeat (each "
                f"{self.heartbeat_seconds} s) is late once: give at least {2 * self.heartbeat_seconds}"
            )

    def host_of(self, worker: int) -> str:
        """Where `worker` was to be started, as far as the launcher said."""
        return self.hosts[worker] if self.hosts else "host not known yet"


@dataclass(frozen=True)
class Failure:
    """The first error of a user's own code: what to show before anything else."""

    worker: int
    summary: str
    traceback: str


@dataclass(frozen=True)
class Outcome:
    """How the job ended. `exit_code` is 0 only when the job is complete."""

    exit_code: int
    reason: str
    failure: Failure | None = None
