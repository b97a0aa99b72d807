"""The pure coordinator with a clock that is moved by hand: what tests say to it, and what it told each process."""

from __future__ import annotations

from typing import Any, TypeVar

from paceline.coordinator.inputs import (
    AgentConnected,
    AgentSaid,
    Connection,
    Disconnected,
    Drop,
    End,
    Input,
    Send,
    StopRequested,
    Tell,
    Tick,
    WorkerSaid,
)
from paceline.coordinator.membership import Coordinator
from paceline.coordinator.messages import (
    Announced,
    AtEnd,
    Fail,
    FencedOff,
    GaveUp,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Meet,
    ProcessExited,
    ProcessStarted,
    PushedStop,
    PushedVerdict,
    RecordCall,
    Replayed,
    Ruled,
)
from paceline.coordinator.protocols import Replay, Report, RoundState, Ruling, Stop, Verdict
from paceline.coordinator.rules import JobRules, Outcome
from paceline.observability.events import Event
from paceline.types import Member, WorkerIdentity

BOUNDARY, WORKING, VOTED = RoundState.BOUNDARY, RoundState.WORKING, RoundState.VOTED
AGENT = 1000
Kind = TypeVar("Kind")


class Desk:
    """Connections: worker w, incarnation i speaks on `10 * w + i`; the agent on 1000."""

    def __init__(self, workers: int = 3, **rules: Any) -> None:
        self.now = 100.0
        self.coordinator = Coordinator(JobRules(workers=workers, **rules), now=self.now)
        self.sent: list[tuple[Connection, Any]] = []
        self.events: list[Event] = []
        self.outcome: Outcome | None = None
        self.dropped: set[Connection] = set()
        self.frozen: set[Connection] = set()  # alive, but sends no heartbeats
        self.open: dict[Connection, WorkerIdentity] = {}
        self.handle(AgentConnected(AGENT, "a"))

    # ------------------------------------------------------------------------------------------ saying

    def handle(self, happened: Input) -> None:
        for effect in self.coordinator.handle(happened, self.now):
            match effect:
                case Send(connection, message):
                    self.sent.append((connection, message))
                case Drop(connection):
                    self.dropped.add(connection)
                case Tell(event):
                    self.events.append(event)
                case End(outcome):
                    assert self.outcome is None, "a job ends once"
                    self.outcome = outcome

    def say(self, worker: int, message: Any, incarnation: int = 1) -> None:
        self.handle(WorkerSaid(10 * worker + incarnation, WorkerIdentity(worker, incarnation), message))

    def start(self, worker: int, incarnation: int = 1) -> None:
        self.handle(AgentSaid(AGENT, ProcessStarted(WorkerIdentity(worker, incarnation), pid=1)))

    def join(self, worker: int, incarnation: int = 1) -> None:
        self.open[10 * worker + incarnation] = WorkerIdentity(worker, incarnation)
        self.say(worker, Join(member(worker, incarnation)), incarnation)

    def meet(
        self,
        worker: int,
        committed: int = -1,
        state: RoundState = BOUNDARY,
        *,
        generation: int | None = None,
        call: int = 0,
        suspects: tuple[int, ...] = (),
        incarnation: int = 1,
        call_agreed: bool = True,
        admits: bool = True,
    ) -> None:
        """`generation` is by default the last one that this process was ruled into."""
        if generation is None:
            rulings = self.rulings(worker, incarnation)
            generation = rulings[-1].group.generation if rulings else 0
        who = tuple(WorkerIdentity(suspect, 1) for suspect in suspects)
        report = Report(generation, call, committed, state, who, "test", call_agreed, admits)
        self.say(worker, Meet(report), incarnation)

    def record(self, worker: int, call: int, result: bytes = b"", incarnation: int = 1) -> None:
        self.say(worker, RecordCall(call, result), incarnation)

    def come_to_end(self, worker: int, incarnation: int = 1) -> None:
        self.say(worker, AtEnd(), incarnation)

    def leave(self, worker: int, incarnation: int = 1) -> None:
        self.say(worker, Leave(), incarnation)
        self.disconnect(worker, incarnation)

    def fail(self, worker: int, incarnation: int = 1) -> None:
        self.say(worker, Fail("ValueError: no", "Traceback ..."), incarnation)

    def disconnect(self, worker: int, incarnation: int = 1) -> None:
        self.open.pop(10 * worker + incarnation, None)
        self.handle(Disconnected(10 * worker + incarnation, "its connection closed"))

    def exit(self, worker: int, incarnation: int = 1, code: int | None = None, signal: str | None = None) -> None:
        self.handle(AgentSaid(AGENT, ProcessExited(WorkerIdentity(worker, incarnation), code, signal)))

    def kill(self, worker: int, incarnation: int = 1) -> None:
        self.disconnect(worker, incarnation)
        self.exit(worker, incarnation, signal="SIGKILL")

    def give_up(self, worker: int) -> None:
        self.handle(AgentSaid(AGENT, GaveUp(worker, "it failed 3 times")))

    def request_stop(self, *, immediate: bool) -> None:
        self.handle(StopRequested(immediate, "Ctrl-C", 130))

    def wait(self, seconds: float) -> None:
        """Time passes; every open connection that is not frozen beats."""
        end = self.now + seconds - 1e-9
        while self.now < end:
            self.now += 0.25
            for connection, identity in self.open.items():
                if connection not in self.frozen:
                    self.handle(WorkerSaid(connection, identity, Heartbeat()))
            self.handle(Tick())

    def form(self, *workers: int) -> None:
        """The first group, of all workers by default."""
        for worker in workers or range(self.coordinator.job.rules.workers):
            self.join(worker)
            self.meet(worker)

    # ------------------------------------------------------------------------------------------ hearing

    def told(self, worker: int, kind: type[Kind], incarnation: int = 1) -> list[Kind]:
        return [
            message
            for connection, message in self.sent
            if connection == 10 * worker + incarnation and isinstance(message, kind)
        ]

    def orders(self, kind: type[Kind]) -> list[Kind]:
        return [message for connection, message in self.sent if connection == AGENT and isinstance(message, kind)]

    def rulings(self, worker: int, incarnation: int = 1) -> list[Ruling]:
        return [message.ruling for message in self.told(worker, Ruled, incarnation)]

    def ruling(self, worker: int, incarnation: int = 1) -> Ruling:
        """The last one."""
        return self.rulings(worker, incarnation)[-1]

    def generation(self, worker: int, incarnation: int = 1) -> int:
        rulings = self.rulings(worker, incarnation)
        return rulings[-1].group.generation if rulings else 0

    def replays(self, worker: int, incarnation: int = 1) -> list[Replay]:
        return [replay for message in self.told(worker, Replayed, incarnation) for replay in message.replays]

    def verdicts(self, worker: int, incarnation: int = 1) -> list[Verdict]:
        return [message.verdict for message in self.told(worker, PushedVerdict, incarnation)]

    def stops(self, worker: int, incarnation: int = 1) -> list[Stop]:
        return [message.stop for message in self.told(worker, PushedStop, incarnation)]

    def announced(self, worker: int, incarnation: int = 1) -> list[int]:
        return [message.generation for message in self.told(worker, Announced, incarnation)]

    def joined(self, worker: int, incarnation: int = 1) -> Joined:
        return self.told(worker, Joined, incarnation)[-1]

    def is_fenced(self, worker: int, incarnation: int = 1) -> bool:
        return bool(self.told(worker, FencedOff, incarnation))

    def told_events(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]


def member(worker: int, incarnation: int = 1) -> Member:
    return Member(WorkerIdentity(worker, incarnation), "a", f"10.0.0.1:{10 * worker + incarnation}", pid=1)


def workers_of(ruling: Ruling) -> list[int]:
    return [one.worker for one in ruling.group.members]


def newcomers_of(ruling: Ruling) -> list[int]:
    return sorted(identity.worker for identity in ruling.group.newcomers)
