"""Start a worker again, or give it up? A pure decision from its history. Next file: `process.py`."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.clusters.exits import Exit


@dataclass(frozen=True)
class RestartRules:
    """How patient the agent is.

    Attributes:
        max_restarts: for each worker, over the whole job.
        first_delay_seconds: before the second restart in a row; it doubles with each one after that.
        longest_delay_seconds: where doubling ends.
        healthy_after_seconds: an incarnation that lived this long ends a row of quick deaths.
    """

    max_restarts: int = 10
    first_delay_seconds: float = 0.5
    longest_delay_seconds: float = 30.0
    healthy_after_seconds: float = 60.0


@dataclass(frozen=True)
class Restart:
    """Start the next incarnation after so long."""

    after_seconds: float


@dataclass(frozen=True)
class GiveUp:
    """This worker does not come back."""

    reason: str


def decide(exit: Exit, lifetimes: tuple[float, ...], rules: RestartRules) -> Restart | GiveUp:
    """What to do after `exit` of a worker whose incarnations, this one included, lived for `lifetimes` seconds.

    The first restart is immediate: one kill is an accident, and waiting would only cost training time. Deaths in a
    row that come soon after the start point at something that does not heal: each waits twice as long as the last.
    """
    restarts = len(lifetimes) - 1
    if restarts >= rules.max_restarts:
        return GiveUp(f"worker {exit.worker} {exit.description}; {_used_up(restarts)}")
    quick = 0
    for lifetime in reversed(lifetimes):
        if lifetime >= rules.healthy_after_seconds:
            break
        quick += 1
    if quick <= 1:
        return Restart(0.0)
    return Restart(min(rules.first_delay_seconds * 2.0 ** min(quick - 2, 30), rules.longest_delay_seconds))


def _used_up(restarts: int) -> str:
    match restarts:
        case 0:
            return "restarts are turned off (--max-restarts 0)"
        case 1:
            return "it was started again once before, which is the limit (--max-restarts)"
        case _:
            return f"it was started again {restarts} times before, which is the limit (--max-restarts)"
