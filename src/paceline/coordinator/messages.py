"""What travels between workers, agents and the coordinator."""

from __future__ import annotations

import msgspec


class StopWorkers(msgspec.Struct, frozen=True, tag="stop-workers"):
    """The job stops: start no worker any more. `immediate`: end those that run, now (first gently, then by force);
    otherwise they stop by themselves at the next round's end, and only those that have not joined yet need a signal."""

    reason: str
    immediate: bool
    exit_code: int


class Dismiss(msgspec.Struct, frozen=True, tag="dismiss"):
    """The job is complete: workers that still run (a replacement that was starting) are not needed. End them."""

    reason: str


class KillWorker(msgspec.Struct, frozen=True, tag="kill-worker"):
    """This process was ruled lost but may still exist (frozen, stuck): kill it by force, report its exit, and let the
    restart policy decide about the next."""

    worker: int
    incarnation: int
    reason: str


Order = StopWorkers | Dismiss | KillWorker
