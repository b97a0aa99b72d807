"""How an open round ends when its vote was cut: one pure function. Next file: `quorum.py`.

A member commits a round only when it has seen a yes from every member of its generation. So:

- If any member has committed the round, every other member has voted yes and holds the whole result: those that only
  *voted* commit it too. That a member committed shows in its own count, or in a call that has ended: a call ends only
  after all of its rounds.
- If nobody is known to have committed it, nobody who lives has: it is discarded everywhere and run again.

A committed round that was once reported stays committed, even if the reporter dies before the ruling (`highest`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from paceline.coordinator.protocols import Report, RoundState, Settlement
from paceline.errors import ProtocolError
from paceline.types import WorkerIdentity


@dataclass(frozen=True)
class Ballot:
    """The ruling on one generation's open round.

    Attributes:
        settlements: for each survivor.
        committed: how many rounds of the job are committed after it; -1 while nobody holds state.
        reason: for people.
    """

    settlements: Mapping[WorkerIdentity, Settlement]
    committed: int
    reason: str


def settle(
    reports: Mapping[WorkerIdentity, Report],
    *,
    newcomers: Set[WorkerIdentity] = frozenset(),
    highest: int = -1,
    num_ended_calls: int = 0,
) -> Ballot:
    """Rule on the open round of one generation.

    Args:
        reports: of every member of the generation that is alive; each has met.
        newcomers: those of them that entered the generation without state.
        highest: the most committed rounds that anyone ever reported, or that was ever ruled.
        num_ended_calls: calls 0..num_ended_calls-1 have ended.

    Raises `ProtocolError` when the reports cannot all be true: a member is further behind than one vote, or did not
    vote for a round that is committed.
    """
    held = {who: _held(who, report, newcomers) for who, report in reports.items()}
    committed = max([highest, *(rounds for rounds in held.values() if rounds is not None)])
    if any(
        rounds == committed and reports[who].state is RoundState.VOTED and reports[who].call < num_ended_calls
        for who, rounds in held.items()
    ):
        committed += 1  # Its last member to commit is gone, but had told that the call has ended.
    settlements = {who: _settle_one(who, report, held[who], committed) for who, report in reports.items()}
    return Ballot(settlements, committed, _explain(settlements, committed))


def _held(who: WorkerIdentity, report: Report, newcomers: Set[WorkerIdentity]) -> int | None:
    """How many rounds this member's state holds; None when it holds no state."""
    if report.committed_rounds >= 0:
        return report.committed_rounds
    return None if who in newcomers else 0  # Before the first round all states are equally good.


def _settle_one(who: WorkerIdentity, report: Report, held: int | None, committed: int) -> Settlement:
    behind = 0 if held is None else max(committed, 0) - held
    match report.state:
        case RoundState.BOUNDARY if behind == 0:
            return Settlement.NOTHING
        case RoundState.WORKING if behind == 0:
            return Settlement.DISCARD
        case RoundState.VOTED if held is not None and behind == 0:
            return Settlement.DISCARD
        case RoundState.VOTED if held is not None and behind == 1:
            return Settlement.COMMIT
        case _:
            holds = "no state" if held is None else f"{held} rounds"
            raise ProtocolError(
                f"{committed} rounds are committed, but worker {who.worker} holds {holds} and says that its next is "
                f"{report.state.value!r}: a round was committed without its vote"
            )


def _explain(settlements: Mapping[WorkerIdentity, Settlement], committed: int) -> str:
    by_settlement = {
        settlement: [str(who.worker) for who, settled in settlements.items() if settled is settlement]
        for settlement in (Settlement.COMMIT, Settlement.DISCARD)
    }
    if by_settlement[Settlement.COMMIT]:
        who = ", ".join(by_settlement[Settlement.COMMIT])
        return f"round {committed - 1} is committed: all had voted for it (worker {who} did not know yet)"
    if by_settlement[Settlement.DISCARD]:
        return f"round {max(committed, 0)} is discarded: nobody has committed it"
    return "no round was open"
