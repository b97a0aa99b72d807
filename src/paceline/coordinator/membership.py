"""The coordinator without its sockets: one input at a time, what to do about it, nothing else.

`handle(input, now)` is deterministic, so it runs under a test's clock, a simulation's, or the server's. It reads:
`inputs.py` (what comes in and goes out), `ballot.py` and `quorum.py` (the two decisions), `job.py` (what is known),
`arrivals.py` (who is there), `meetings.py` (who goes on together), `ending.py` (how it ends). Next file: `server.py`.
"""

from __future__ import annotations

from paceline.coordinator import arrivals, ending, meetings
from paceline.coordinator.inputs import (
    AgentConnected,
    AgentSaid,
    Disconnected,
    Effect,
    Input,
    StopRequested,
    Tick,
    WorkerSaid,
)
from paceline.coordinator.job import Job, Turn
from paceline.coordinator.messages import (
    Alive,
    AtEnd,
    Fail,
    ForwardEvent,
    GaveUp,
    Heartbeat,
    Join,
    Leave,
    Meet,
    ProcessExited,
    ProcessStarted,
    RecordCall,
    unwrap,
)
from paceline.coordinator.rules import JobRules


class Coordinator:
    """One job's membership. `job` may be read by anyone."""

    def __init__(self, rules: JobRules, *, now: float) -> None:
        self.job = Job(rules, now)

    def handle(self, happened: Input, now: float) -> list[Effect]:
        """Take one input; return what is to be done, in order.

        Raises `ProtocolError` when a worker forwards an event that does not exist; nothing has changed then.
        """
        turn = Turn(self.job, now)
        if self.job.outcome is not None:
            ending.after_end(turn, happened)
            return turn.effects
        match happened:
            case WorkerSaid():
                _hear_worker(turn, happened)
            case AgentSaid():
                _hear_agent(turn, happened)
            case AgentConnected():
                arrivals.agent_connected(turn, happened.connection, happened.host)
            case Disconnected():
                arrivals.disconnected(turn, happened.connection, happened.reason)
            case StopRequested():
                ending.request_stop(turn, happened)
            case Tick():
                arrivals.watch(turn)
                meetings.mind_the_time(turn)
        meetings.reconsider(turn)
        ending.check(turn)
        return turn.effects


def _hear_worker(turn: Turn, said: WorkerSaid) -> None:
    job, connection, identity, message = turn.job, said.connection, said.identity, said.message
    if isinstance(message, ForwardEvent):
        turn.tell(unwrap(message))  # A fact stays one, whoever is lost meanwhile.
        return
    place = job.find(identity.worker)
    current = place is not None and place.connection == connection
    if current:
        assert place is not None
        place.heard = turn.now
    match message:
        case Join():
            arrivals.join(turn, connection, identity, message.member)
        case Fail() | Leave() if place is not None and (current or identity.incarnation >= place.incarnation):
            if isinstance(message, Fail):
                ending.fail(turn, connection, identity, message)
            else:
                arrivals.leave(turn, connection, identity)
        case Meet() if current and place is not None:
            meetings.met(turn, place, message.report)
        case RecordCall() if current and place is not None:
            meetings.record_call(turn, place, message.call, message.result)
        case AtEnd() if current and place is not None:
            meetings.come_to_end(turn, place)
        case Heartbeat() if current and place is not None:
            turn.send(place, Alive())
        case _:
            reason = place.reason if place is not None else ""
            arrivals.fence(turn, connection, reason or "it is not a worker of this job any more")


def _hear_agent(turn: Turn, said: AgentSaid) -> None:
    match said.message:
        case ProcessStarted():
            arrivals.process_started(turn, said.connection, said.message)
        case ProcessExited():
            arrivals.process_exited(turn, said.message)
        case GaveUp():
            arrivals.gave_up(turn, said.message)
