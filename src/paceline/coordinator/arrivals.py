"""Who is there: processes start, join, leave, are lost, and are watched by their heartbeats.

Next file: `meetings.py`.
"""

from __future__ import annotations

from paceline.coordinator import ending
from paceline.coordinator.inputs import Connection, Drop, Send
from paceline.coordinator.job import Place, Status, Turn
from paceline.coordinator.messages import (
    FencedOff,
    GaveUp,
    Joined,
    KillWorker,
    ProcessExited,
    ProcessStarted,
    PushedStop,
    PushedVerdict,
    Received,
    Refused,
    StopWorkers,
    ToWorker,
)
from paceline.coordinator.protocols import Verdict
from paceline.observability.events import MemberLost, WorkerExited, WorkerStarted
from paceline.types import Member, WorkerIdentity

# ------------------------------------------------------------------------------------------------------------ agents


def agent_connected(turn: Turn, connection: Connection, host: str) -> None:
    turn.job.agents[connection] = host
    if turn.job.stop is not None:
        turn.order([connection], StopWorkers(turn.job.stop.reason, False, turn.job.stop.exit_code))


def process_started(turn: Turn, agent: Connection, message: ProcessStarted) -> None:
    """An agent has filled a place."""
    job = turn.job
    host = job.agents[agent]
    identity = message.identity
    turn.tell(WorkerStarted(identity.worker, identity.incarnation, message.pid, host))
    place = job.find(identity.worker)
    if place is None or identity.incarnation < max(1, place.incarnation):
        return
    if identity.incarnation > place.incarnation:
        _take_place(turn, place, identity.incarnation)
        job.set_status(place, Status.STARTING)
    place.agent, place.host = agent, host


def process_exited(turn: Turn, message: ProcessExited) -> None:
    """A process has ended. With exit code 0, or when the job was asked to stop, it ended well, whether it said so or
    not."""
    job = turn.job
    identity = message.identity
    turn.tell(WorkerExited(identity.worker, identity.incarnation, message.exit_code, message.signal))
    place = job.find(identity.worker)
    if place is None or identity != place.identity or place.status in (Status.LEFT, Status.GIVEN_UP):
        return
    place.explain_by = None
    how = message.signal or f"exit code {message.exit_code}"
    if message.exit_code == 0 or job.stop is not None:
        depart(turn, place)
    elif place.status is Status.LOST:
        place.reason = how if not place.reason else f"{place.reason}; {how}"
        if identity in job.lost:
            job.lost[identity] = place.reason
    else:
        lose(turn, place, f"its process ended: {how}")


def gave_up(turn: Turn, message: GaveUp) -> None:
    """An agent will not fill a place again."""
    place = turn.job.find(message.worker)
    if place is None or place.status in (Status.LEFT, Status.GIVEN_UP):
        return
    if place.status is Status.JOINED:
        lose(turn, place, message.reason)
    place.explain_by = None
    turn.job.set_status(place, Status.GIVEN_UP, message.reason)


# ----------------------------------------------------------------------------------------------------------- workers


def join(turn: Turn, connection: Connection, identity: WorkerIdentity, member: Member) -> None:
    """A process has come and wants to be a member."""
    job = turn.job
    place = job.find(identity.worker)
    if place is None or identity.incarnation < 1 or member.identity != identity:
        refuse(turn, connection, f"{identity} is not a place of this job, which has {job.rules.workers} workers")
    elif identity.incarnation < place.incarnation or (
        identity.incarnation == place.incarnation and place.status in (Status.LOST, Status.GIVEN_UP)
    ):
        fence(turn, connection, place.reason or "it was replaced by a newer process")
    elif identity.incarnation == place.incarnation and place.status is not Status.STARTING:
        taken = "is here already" if place.status is Status.JOINED else "has left"
        refuse(turn, connection, f"worker {identity.worker}, incarnation {identity.incarnation}, {taken}")
    elif job.stop is not None:
        answer(turn, connection, PushedStop(ending.stop_now(job.stop)))
    else:
        if identity.incarnation > place.incarnation:
            _take_place(turn, place, identity.incarnation)
        place.member, place.host, place.connection, place.heard = member, member.host, connection, turn.now
        job.workers_by_connection[connection] = place.worker
        job.set_status(place, Status.JOINED)
        turn.send(place, Joined(job.generation, job.rules.workers, job.rules.heartbeat_seconds))


def leave(turn: Turn, connection: Connection, identity: WorkerIdentity) -> None:
    """A worker's script has ended well; it may never have joined."""
    answer(turn, connection, Received())
    place = turn.job.find(identity.worker)
    if place is not None and identity.incarnation > place.incarnation:
        _take_place(turn, place, identity.incarnation)
    if place is not None and identity == place.identity and place.status is not Status.LOST:
        depart(turn, place)


def depart(turn: Turn, place: Place) -> None:
    """The process of this place ended well."""
    if place.in_group:
        turn.job.last_gone = place.worker
    turn.job.lost.pop(place.identity, None)
    _detach(turn, place)
    turn.job.set_status(place, Status.LEFT)


def disconnected(turn: Turn, connection: Connection, reason: str) -> None:
    """A connection ended. A worker that did not leave is lost; of an agent, the processes that had not joined."""
    job = turn.job
    if connection in job.agents:
        host = job.agents.pop(connection)
        for place in job.places:
            if place.agent == connection:
                place.agent = place.explain_by = None
                if place.status is Status.STARTING:
                    lose(turn, place, f"the agent on {host} is gone ({reason})")
    elif connection in job.workers_by_connection:
        place = job.places[job.workers_by_connection[connection]]
        place.connection = None
        del job.workers_by_connection[connection]
        if job.stop is not None:
            depart(turn, place)  # As it was asked to; the others see its talk end.
            return
        lose(turn, place, reason)
        if place.agent is not None:
            place.explain_by = turn.now + job.rules.lost_after_seconds


def lose(turn: Turn, place: Place, reason: str, *, kill: bool = False) -> None:
    """Declare the process of this place lost: end its generation, shut it out, and have its agent `kill` it."""
    job = turn.job
    if place.status is Status.JOINED:
        turn.tell(MemberLost(place.worker, place.incarnation, job.generation, reason))
    was_member, connection = place.in_group, place.connection
    _detach(turn, place)
    job.set_status(place, Status.LOST, reason)
    if connection is not None:
        fence(turn, connection, reason)
    if kill and place.agent is not None:
        turn.order([place.agent], KillWorker(place.worker, place.incarnation, reason))
    if was_member:
        job.last_gone = place.worker
        job.lost[place.identity] = reason
        if job.group is not None and job.group.rank_of(place.identity) == 0 and not place.at_end:
            job.tail_undone = True
        end_generation(turn, f"worker {place.worker} was lost: {reason}")


def end_generation(turn: Turn, reason: str) -> None:
    """Push the verdict to every member that has not met yet: abort the talk, and come."""
    job = turn.job
    job.over = True
    pushed = PushedVerdict(Verdict(job.generation, tuple(job.lost), reason))
    for worker in sorted(job.alive - job.waiting):
        turn.send(job.places[worker], pushed)


def watch(turn: Turn) -> None:
    """Find the silent. Time in which the coordinator itself did not run counts against nobody."""
    job, rules = turn.job, turn.job.rules
    slept = turn.now - job.last_tick
    if slept > 2 * rules.heartbeat_seconds:
        for place in job.places:
            place.heard += slept
    job.last_tick = turn.now
    for place in job.places:
        if place.status is Status.JOINED and turn.now - place.heard > rules.lost_after_seconds:
            lose(turn, place, f"silent for {turn.now - place.heard:.1f} s", kill=True)
        elif place.explain_by is not None and turn.now > place.explain_by:
            place.explain_by = None
            if place.agent is not None:
                turn.order([place.agent], KillWorker(place.worker, place.incarnation, place.reason))


def fence(turn: Turn, connection: Connection, reason: str) -> None:
    """Tell a process that its time is over."""
    answer(turn, connection, FencedOff(reason))
    turn.effects.append(Drop(connection))


def refuse(turn: Turn, connection: Connection, reason: str) -> None:
    answer(turn, connection, Refused(reason))
    turn.effects.append(Drop(connection))


def answer(turn: Turn, connection: Connection, message: ToWorker) -> None:
    turn.effects.append(Send(connection, message))


def _take_place(turn: Turn, place: Place, incarnation: int) -> None:
    """A new process holds the place; what was known of the old one does not count for it."""
    if place.status is Status.JOINED:
        lose(turn, place, "it was replaced by a newer process")
    place.incarnation = incarnation
    place.generation = place.calls_ended = 0
    place.at_end = False
    place.agent = place.member = place.replayed_at = place.explain_by = None


def _detach(turn: Turn, place: Place) -> None:
    if place.connection is not None:
        turn.job.workers_by_connection.pop(place.connection, None)
    place.connection = place.report = place.explain_by = None
    place.in_group = False
    turn.job.note(place)
