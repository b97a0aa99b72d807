"""How a job ends: complete, failed, or stopped. Each ending is told to everyone once, and then stays.

Next file: `arrivals.py`.
"""

from __future__ import annotations

from collections.abc import Collection

from paceline.coordinator.inputs import (
    AgentConnected,
    AgentSaid,
    Connection,
    End,
    Input,
    Send,
    StopRequested,
    WorkerSaid,
)
from paceline.coordinator.job import MAY_COME, Job, Place, Status, Turn
from paceline.coordinator.messages import (
    Alive,
    Dismiss,
    Fail,
    ForwardEvent,
    Heartbeat,
    Join,
    Leave,
    Meet,
    Order,
    ProcessExited,
    PushedStop,
    Received,
    StartTimedOut,
    StopWorkers,
    unwrap,
)
from paceline.coordinator.protocols import Stop
from paceline.coordinator.quorum import name_workers
from paceline.coordinator.rules import Failure, Outcome
from paceline.observability.events import WorkerExited, WorkerFailed
from paceline.types import WorkerIdentity

START_TIMEOUT_EXIT_CODE = 124  # as `timeout` does


def end(turn: Turn, outcome: Outcome, *, told: Collection[int] = ()) -> None:
    """End the job now: every worker that has joined and was not `told` otherwise, and every agent, is told."""
    job = turn.job
    assert job.outcome is None
    job.outcome = outcome
    last_word = PushedStop(_last_word(outcome))
    for place in job.places:
        if place.status is Status.JOINED and place.worker not in told:
            turn.send(place, last_word)
    turn.order(job.agents, last_order(outcome))
    turn.effects.append(End(outcome))


def _last_word(outcome: Outcome) -> Stop:
    return Stop(outcome.reason, outcome.exit_code, immediate=True)


def last_order(outcome: Outcome) -> Order:
    if outcome.exit_code == 0:
        return Dismiss(outcome.reason)
    return StopWorkers(outcome.reason, True, outcome.exit_code)


def after_end(turn: Turn, happened: Input) -> None:
    """The job has ended: whoever still speaks is told so, and facts are still told."""
    outcome = turn.job.outcome
    assert outcome is not None
    match happened:
        case WorkerSaid(connection, _, message):
            match message:
                case Leave() | Fail():
                    turn.effects.append(Send(connection, Received()))
                case Join() | Meet():
                    turn.effects.append(Send(connection, PushedStop(_last_word(outcome))))
                case Heartbeat():
                    turn.effects.append(Send(connection, Alive()))
                case ForwardEvent():
                    turn.tell(unwrap(message))
        case AgentConnected(connection, _):
            turn.order([connection], last_order(outcome))
        case AgentSaid(_, ProcessExited(who, exit_code, signal)):
            turn.tell(WorkerExited(who.worker, who.incarnation, exit_code, signal))


def fail(turn: Turn, connection: Connection, identity: WorkerIdentity, message: Fail) -> None:
    """A worker's own code raised. The first such failure is the job's."""
    turn.effects.append(Send(connection, Received()))
    turn.tell(WorkerFailed(identity.worker, message.summary, message.traceback))
    failure = Failure(identity.worker, message.summary, message.traceback)
    end(turn, Outcome(1, f"worker {identity.worker} failed: {message.summary}", failure), told=(identity.worker,))


def time_out_start(turn: Turn, message: str) -> None:
    """Not all workers came: those that did are told which are missing."""
    told = sorted(turn.job.waiting)
    for worker in told:
        turn.send(turn.job.places[worker], StartTimedOut(message))
    end(turn, Outcome(START_TIMEOUT_EXIT_CODE, message), told=told)


def request_stop(turn: Turn, request: StopRequested) -> None:
    """Stop now; or let the group stop at its next round's end, all together, and everyone else now."""
    job = turn.job
    if request.immediate:
        end(turn, Outcome(request.exit_code, request.reason))
        return
    if job.stop is not None:
        return
    job.stop = Stop(request.reason, request.exit_code, immediate=False)
    for place in job.places:
        if place.in_group:
            turn.send(place, PushedStop(job.stop))
        elif place.status is Status.JOINED:
            turn.send(place, PushedStop(stop_now(job.stop)))
    turn.order(job.agents, StopWorkers(request.reason, False, request.exit_code))


def stop_now(stop: Stop) -> Stop:
    """For a worker that is in no group, so that no round's end comes for it."""
    return Stop(stop.reason, stop.exit_code, immediate=True)


def check(turn: Turn) -> None:
    """End the job when nothing is left to wait for. Called after each input."""
    job = turn.job
    if job.outcome is not None:
        return
    if job.stop is not None:
        if not job.counts[Status.JOINED] and not job.counts[Status.STARTING]:
            end(turn, Outcome(job.stop.exit_code, job.stop.reason))
    elif job.generation == 0:
        _check_before_first_group(turn)
    elif not job.alive:
        _check_group_gone(turn)
    elif job.paused_since is not None and _num_possible(turn) < job.min_workers:
        end(turn, Outcome(1, f"too few workers are left: {_describe_missing(turn)}"))


def _num_possible(turn: Turn) -> int:
    """How many workers a group could have, at most."""
    counts = turn.job.counts
    return counts[Status.JOINED] + sum(counts[status] for status in MAY_COME)


def _check_before_first_group(turn: Turn) -> None:
    job = turn.job
    possible = _num_possible(turn)
    if possible == 0 and not job.counts[Status.GIVEN_UP]:
        end(turn, Outcome(0, "all workers have ended well"))
    elif possible < job.min_workers and job.counts[Status.GIVEN_UP]:
        end(turn, Outcome(1, f"the job cannot start: {_describe_missing(turn)}"))


def _check_group_gone(turn: Turn) -> None:
    """Every member is gone. Whoever went last decides: a member that ended well, or was at the end of its script, has
    finished the job."""
    job = turn.job
    assert job.last_gone is not None
    last = job.places[job.last_gone]
    if last.status is Status.LEFT or (last.at_end and not job.tail_undone):
        end(turn, Outcome(0, "the job is complete"))
    elif last.explain_by is None:  # Otherwise its agent may still say that it ended well.
        lost = "; ".join(f"worker {who.worker}: {reason}" for who, reason in job.lost.items())
        reason = f"every worker that held the state was lost ({lost}), and there is no checkpoint to go back to"
        end(turn, Outcome(1, reason))


def _describe_missing(turn: Turn) -> str:
    possible = _num_possible(turn)
    reasons = describe_given_up(turn.job) or " (the others have ended)"
    return f"{possible} of at least {turn.job.min_workers} can take part{reasons}"


def describe_given_up(job: Job) -> str:
    """ " (worker 2: why ...)" for the workers that are not started again; empty when there are none."""
    given_up = [place for place in job.places if place.status is Status.GIVEN_UP]
    return f" ({'; '.join(f'worker {place.worker}: {place.reason}' for place in given_up)})" if given_up else ""


def describe_absence(place: Place) -> str:
    """Why a worker is not there, for people."""
    match place.status:
        case Status.ABSENT:
            why = "was not started"
        case Status.STARTING:
            why = "runs, but has not joined"
        case Status.JOINED:
            why = "joined, but has not come to its first call"
        case _:
            why = f"was lost: {place.reason}"
    return f"{name_workers((place.worker,))} on {place.host} {why}"
