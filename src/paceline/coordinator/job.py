"""What the coordinator knows of its job: the places, the generation, the calls that have ended. State, no decisions.

It changes only in answer to inputs (`inputs.py`) and is a function of them and of their times: a journal of inputs
would bring it back. Next file: `membership.py`, where inputs arrive.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.coordinator.inputs import Connection, Effect, Send, Tell
from paceline.coordinator.messages import Order, ToWorker
from paceline.coordinator.protocols import Replay, Report, Stop
from paceline.coordinator.rules import JobRules, Outcome
from paceline.observability.events import Event
from paceline.types import Group, Member, WorkerIdentity


class Status(enum.Enum):
    """Of the newest process of a place."""

    ABSENT = "absent"  # none was heard of yet
    STARTING = "starting"  # an agent started it; it has not joined
    JOINED = "joined"  # alive: heartbeats count
    LOST = "lost"  # gone; another may come
    LEFT = "left"  # ended well; none is missed
    GIVEN_UP = "given up"  # its agent starts no other


MAY_COME = (Status.ABSENT, Status.STARTING, Status.LOST)


@dataclass
class Place:
    """One of the job's places, and the newest process that held it.

    Attributes:
        agent: connection of the agent that watches the process.
        heard: when it last said anything.
        generation: the last one that it was ruled into.
        in_group: it belongs to the current group and is alive.
        report: set while it waits in `meet`, since `met_at`.
        calls_ended: calls that this process itself has ended: it is past call `calls_ended - 1`.
        at_end: its script has come to its end.
        replayed_at: when it last was told of an ended call: it will soon ask for the next.
        explain_by: its connection closed; until then its agent may say how the process ended.
        reason: why it is lost or was given up.
    """

    worker: int
    host: str
    status: Status = Status.ABSENT
    incarnation: int = 0
    connection: Connection | None = None
    agent: Connection | None = None
    member: Member | None = None
    heard: float = 0.0
    generation: int = 0
    in_group: bool = False
    report: Report | None = None
    met_at: float = 0.0
    calls_ended: int = 0
    at_end: bool = False
    replayed_at: float | None = None
    explain_by: float | None = None
    reason: str = ""

    @property
    def identity(self) -> WorkerIdentity:
        return WorkerIdentity(self.worker, self.incarnation)


@dataclass
class EndedCalls:
    """Results of the calls that have ended, for workers that come later."""

    capacity_bytes: int
    number: int = 0  # calls 0..number-1 have ended
    results: dict[int, bytes | None] = field(default_factory=dict)
    num_bytes: int = 0

    def record(self, call: int, result: bytes) -> None:
        """The first result stays; one that does not fit any more is remembered as None."""
        self.number = max(self.number, call + 1)
        if call not in self.results:
            fits = self.num_bytes + len(result) <= self.capacity_bytes
            self.results[call] = result if fits else None
            self.num_bytes += len(result) if fits else 0

    def replay_from(self, call: int, stop: int, *, max_number: int, max_bytes: int) -> tuple[Replay, ...]:
        """Call `call` and those after it, which have ended, up to `stop`, as many as fit; at least one."""
        replays: list[Replay] = []
        num_bytes = 0
        for number in range(call, min(stop, call + max_number)):
            result = self.results.get(number)
            num_bytes += len(result or b"")
            if replays and num_bytes > max_bytes:
                break
            replays.append(Replay(number, result))
        return tuple(replays)


@dataclass
class Job:
    """Everything known of one job.

    Attributes:
        agents: host of each connected agent.
        workers_by_connection: the joined process on each connection.
        announced: the newest generation that members were told of.
        lost: members of the current generation that were lost, with the reason.
        over: the current generation has ended by a verdict.
        tail_undone: rank 0 of the current generation was lost before it came to the end of the script. What it had to
            do there falls to the next rank 0.
        held: workers whose replay of the last ended call is held back until that is settled.
        meeting_since: when the first one began to wait for the group that is to be formed.
        highest: the most committed rounds ever reported or ruled.
        last_gone: the worker that was the last to leave the group, well or not.
        paused_since: too few workers for a group, since then.
    """

    rules: JobRules
    began: float
    places: list[Place] = field(init=False)
    agents: dict[Connection, str] = field(default_factory=dict)
    workers_by_connection: dict[Connection, int] = field(default_factory=dict)
    generation: int = 0
    group: Group | None = None
    announced: int = 0
    lost: dict[WorkerIdentity, str] = field(default_factory=dict)
    over: bool = False
    tail_undone: bool = False
    held: set[int] = field(default_factory=set)
    meeting_since: float | None = None
    highest: int = -1
    last_gone: int | None = None
    paused_since: float | None = None
    last_tick: float = field(init=False)
    last_notice: float = field(init=False)
    ended_calls: EndedCalls = field(init=False)
    stop: Stop | None = None
    outcome: Outcome | None = None
    # Derived from the places by `note`, so that an input costs the same however many places there are.
    alive: set[int] = field(default_factory=set)  # members of the group
    waiting: set[int] = field(default_factory=set)  # in `meet`
    underway: set[int] = field(default_factory=set)  # members that have not come to the end of the script
    awaited: set[int] = field(default_factory=set)  # must meet before a group can be formed
    counts: Counter[Status] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.places = [Place(worker, self.rules.host_of(worker)) for worker in range(self.rules.workers)]
        self.ended_calls = EndedCalls(self.rules.max_recorded_bytes)
        self.last_tick = self.last_notice = self.began
        self.counts[Status.ABSENT] = self.rules.workers
        self.awaited = set(range(self.rules.workers))

    @property
    def state_exists(self) -> bool:
        """A round or a call has ended, so that a fresh process is not as good as any."""
        return self.highest > 0 or self.ended_calls.number > 0

    @property
    def min_workers(self) -> int:
        """How many a group needs now: those that ended well are not missing."""
        return max(1, self.rules.min_workers - self.counts[Status.LEFT])

    @property
    def wants_heir(self) -> bool:
        """Every member that is alive has come to the end of the script, but what rank 0 had to do there is undone."""
        return self.tail_undone and not self.underway and self.stop is None

    @property
    def may_want_heir(self) -> bool:
        """It will show when those have met who are still underway."""
        return self.tail_undone and bool(self.underway) and bool(self.awaited)

    def find(self, worker: int) -> Place | None:
        return self.places[worker] if 0 <= worker < len(self.places) else None

    def set_status(self, place: Place, status: Status, reason: str = "") -> None:
        self.counts[place.status] -= 1
        self.counts[status] += 1
        place.status, place.reason = status, reason
        self.note(place)

    def note(self, place: Place) -> None:
        """Bring the derived sets up to date after `place` has changed."""
        if self.generation == 0:
            must_come = place.status in MAY_COME or place.status is Status.JOINED
        else:
            must_come = place.in_group
        for members, belongs in (
            (self.alive, place.in_group),
            (self.underway, place.in_group and not place.at_end),
            (self.waiting, place.report is not None),
            (self.awaited, must_come and place.report is None),
        ):
            if belongs:
                members.add(place.worker)
            else:
                members.discard(place.worker)

    def note_all(self) -> None:
        """The same for all places, into new sets: one that was large once is slow to look through when it is empty."""
        self.alive, self.underway, self.waiting, self.awaited = set(), set(), set(), set()
        for place in self.places:
            self.note(place)


@dataclass
class Turn:
    """The handling of one input: the job, the time, and the effects so far."""

    job: Job
    now: float
    effects: list[Effect] = field(default_factory=list)

    def send(self, place: Place, message: ToWorker) -> None:
        if place.connection is not None:
            self.effects.append(Send(place.connection, message))

    def order(self, agents: Iterable[Connection], order: Order) -> None:
        self.effects.extend(Send(agent, order) for agent in agents)

    def tell(self, event: Event) -> None:
        self.effects.append(Tell(event))
