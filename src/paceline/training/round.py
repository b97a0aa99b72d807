"""One round: work, talk, vote, change. Read this file first; everything else serves these four verbs.

A round is a transaction. Each member *works* alone, the group *talks* and *votes*, and only then does anything
*change*. A round whose talk or vote was cut is settled with the coordinator and, when it is discarded, run again by
the next group; nothing had changed, so nothing has to be put back. Next file: `session.py`, the group that a round
runs in.
"""

from __future__ import annotations

import time
from typing import Any

from paceline.communication.protocols import Communicator
from paceline.errors import CommunicationError
from paceline.observability.events import Phase, PhaseStarted, RoundCommitted, emit
from paceline.strategies.protocols import Activity, Ballot
from paceline.training.session import Outcome, Session
from paceline.types import Group


def run(session: Session, activity: Activity[Any, Any]) -> bool:
    """Take rounds until one is committed. Returns False when it was not the activity's, but one by which the group
    agreed to end the call before it."""
    while True:
        match run_round(session, activity):
            case Outcome.COMMITTED:
                return True
            case Outcome.HALTING if run_round(session, AgreeToHalt(activity.name)) is Outcome.COMMITTED:
                return False


def run_round(session: Session, activity: Activity[Any, Any]) -> Outcome:
    """Take one round together. Only a committed round has changed anything."""
    group, communicator = session.form_group()
    began = _begin(session, "work")
    try:
        work = activity.work(group, communicator.rank, communicator)
        worked = _begin(session, "talk")
        proposal = activity.talk(work, communicator)
    except CommunicationError as lost:
        session.discard(lost, activity.name)
        return Outcome.DISCARDED
    talked = _begin(session, "vote")
    outcome = session.vote(activity.ballot(work, proposal), work_seconds=worked - began, call=activity.name)
    if outcome is not Outcome.COMMITTED:
        return outcome
    voted = _begin(session, "change")
    activity.change(proposal)
    changed = time.perf_counter()
    session.note_commit(
        RoundCommitted(
            round=session.round,
            step=activity.step,
            call=activity.name,
            generation=group.generation,
            size=group.size,
            samples=activity.samples,
            work_seconds=worked - began,
            talk_seconds=talked - worked,
            vote_seconds=voted - talked,
            change_seconds=changed - voted,
        )
    )
    return outcome


def _begin(session: Session, phase: Phase) -> float:
    emit(PhaseStarted(session.round, phase))
    return time.perf_counter()


class AgreeToHalt:
    """The round that ends a call early. It follows, in the same group, a vote in which a member asked for that.

    The vote alone would not do: where it was cut, a member cannot tell what the others have read in it. Like every
    round this one is either committed by all or run again, and then it begins with the activity's own round.
    """

    step = None
    samples = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def work(self, group: Group, rank: int, communicator: Communicator) -> None:
        return None

    def talk(self, work: None, communicator: Communicator) -> None:
        return None

    def ballot(self, work: None, proposal: None) -> Ballot:
        return Ballot(digest=0)

    def change(self, proposal: None) -> None:
        return None
