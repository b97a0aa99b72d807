"""One round: work, talk, vote, change. Read this file first; everything else serves these four verbs.

A round is a transaction. Each member *works* alone, the group *talks* and *votes*, and only then does anything
*change*. A round whose talk or vote was cut is settled with the coordinator and, when it is discarded, run again by
the next group; nothing had changed, so nothing has to be put back. Next file: `session.py`, the group that a round
runs in.
"""

from __future__ import annotations

import time
from typing import Any

from paceline.errors import CommunicationError
from paceline.observability.events import Phase, PhaseStarted, RoundCommitted, emit
from paceline.strategies.protocols import Activity
from paceline.training.session import Outcome, Session


def run(session: Session, activity: Activity[Any, Any]) -> bool:
    """Take rounds until one is not discarded. Returns whether it was committed, rather than halted."""
    while (outcome := run_round(session, activity)) is Outcome.DISCARDED:
        pass
    return outcome is Outcome.COMMITTED


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
