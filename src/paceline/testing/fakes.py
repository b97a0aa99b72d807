"""A job in one process: workers are threads that talk through memory; sessions, calls and the coordinator are real.

    job = ThreadJob(3, script, faults=[KillPoint(worker=1, number=40)])
    result = job.run()

A worker passes a *point* wherever a kill would make a difference: where a phase begins, after each piece that it has
sent to a peer, and before and after everything that it says to the coordinator. A fault ends it at such a point as
`kill -9` ends a process: nothing of it runs any more, its links and its connection break, its agent starts it again.
Points are counted, so a test can walk through all of them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.communication.communicator import GroupCommunicator
from paceline.communication.transports.memory import MemoryLink, MemoryLinks, MemoryNetwork, MemoryWaiter
from paceline.coordinator.client import CoordinatorClient
from paceline.coordinator.inputs import (
    AgentConnected,
    AgentSaid,
    Connection,
    Disconnected,
    End,
    Input,
    Send,
    Tell,
    Tick,
    WorkerSaid,
)
from paceline.coordinator.job import Job
from paceline.coordinator.membership import Coordinator
from paceline.coordinator.messages import (
    FromWorker,
    GaveUp,
    ProcessExited,
    ProcessStarted,
    ToWorker,
    decode_from_worker,
    encode,
)
from paceline.coordinator.protocols import Notice, Replay, Report, Ruling
from paceline.coordinator.rules import JobRules, Outcome
from paceline.errors import Fenced, JobStopped
from paceline.observability.events import Event, PhaseStarted, subscribe, unsubscribe
from paceline.training.calls import Calls
from paceline.training.session import Session
from paceline.types import Group, Member, WorkerIdentity
from paceline.wire.handshake import Credentials

AGENT: Connection = 0
PATIENCE_SECONDS = 30.0
TICK_SECONDS = 0.005
TIMES_FASTER = 20.0  # how fast the coordinator's time passes
FOR_EVER_SECONDS = 1e6


class Killed(BaseException):
    """Ends a thread where a process would have ended."""


@dataclass(frozen=True)
class KillPoint:
    """Kill a worker at its point number `number` (from 0), or at its first point called `name`."""

    worker: int
    number: int | None = None
    name: str | None = None
    incarnation: int = 1


@dataclass
class JobResult:
    """How a job ended, and what was seen on the way.

    Attributes:
        returned: what each process's script returned.
        errors: what it raised instead.
        points: the names of the points that each process passed.
        killed: the processes that met their fault.
    """

    outcome: Outcome
    events: list[Event]
    returned: dict[WorkerIdentity, Any]
    errors: dict[WorkerIdentity, BaseException]
    points: dict[WorkerIdentity, list[str]]
    killed: list[WorkerIdentity]

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class ThreadWorker:
    """What a script gets: its place in the job."""

    def __init__(self, job: ThreadJob, identity: WorkerIdentity) -> None:
        self.job = job
        self.identity = identity
        self.membership = ThreadMembership(job, identity)
        self.session = Session(
            self.membership, Member(identity, "here", "in memory", pid=identity.incarnation), connect=self._connect
        )
        self.calls = Calls(self.session)
        self.session.start()

    def point(self, name: str) -> None:
        """Where the script itself may be killed."""
        self.job.point(self.identity, name)

    def wait_until(self, condition: Callable[[Job], bool]) -> None:
        """Wait until the coordinator knows something of the job."""
        self.job.wait_until(condition)

    def _connect(self, group: Group) -> GroupCommunicator:
        links = _KillableLinks(
            self.job, self.identity, self.job.network(group.generation), group.rank_of(self.identity)
        )
        return GroupCommunicator(rank=links.rank, size=group.size, generation=group.generation, links=links)


class ThreadJob:
    """One job. `script` runs on a thread for each process; the session is left and closed for it.

    Args:
        workers: how many.
        script: what each process runs, from its top.
        faults: kills. Several may be meant for one process; the first one that it meets counts.
        max_restarts: of each worker.
        rules: other fields of `JobRules`. Nobody is lost by silence unless they say so.
    """

    def __init__(
        self,
        workers: int,
        script: Callable[[ThreadWorker], Any],
        *,
        faults: Sequence[KillPoint] = (),
        max_restarts: int = 10,
        **rules: Any,
    ) -> None:
        patient = {
            "lost_after_seconds": FOR_EVER_SECONDS,
            "progress_timeout_seconds": FOR_EVER_SECONDS,
            "start_timeout_seconds": FOR_EVER_SECONDS,
        }
        self.rules = JobRules(workers=workers, **{**patient, **rules})
        self._script = script
        self._faults = list(faults)
        self._max_restarts = max_restarts
        self._lock = threading.Condition(threading.RLock())
        self._now = 0.0
        self._coordinator = Coordinator(self.rules, now=self._now)
        self._connections: dict[Connection, ThreadMembership] = {}
        self._networks: dict[int, MemoryNetwork] = {}
        self._threads: list[threading.Thread] = []
        self._identities: dict[int, WorkerIdentity] = {}  # by thread
        self._ended = threading.Event()
        self._outcome: Outcome | None = None
        self._events: list[Event] = []
        self._returned: dict[WorkerIdentity, Any] = {}
        self._errors: dict[WorkerIdentity, BaseException] = {}
        self._points: dict[WorkerIdentity, list[str]] = {}
        self._killed: list[WorkerIdentity] = []

    def run(self) -> JobResult:
        """Run to the end. Raises `AssertionError` when the job does not end."""
        subscribe(self._on_event)
        ticker = threading.Thread(target=self._tick, name="job-ticker")
        try:
            self.handle(AgentConnected(AGENT, "here"))
            ticker.start()
            for worker in range(self.rules.workers):
                self._start(WorkerIdentity(worker, 1))
            ended = self._ended.wait(PATIENCE_SECONDS)
            stuck = self._join_all()
        finally:
            self._ended.set()
            ticker.join()
            unsubscribe(self._on_event)
        assert ended, f"the job did not end within {PATIENCE_SECONDS:g} s; its last points: {self._last_points()}"
        assert not stuck, f"these did not end after the job had: {stuck}; {self._last_points()}"
        assert self._outcome is not None
        return JobResult(self._outcome, self._events, self._returned, self._errors, self._points, self._killed)

    # ------------------------------------------------------------------------------------------------ the coordinator

    def handle(self, happened: Input) -> None:
        """Give the coordinator an input and carry out what it wants."""
        with self._lock:
            for effect in self._coordinator.handle(happened, self._now):
                match effect:
                    case Send(connection, message) if connection in self._connections:
                        assert isinstance(message, ToWorker)
                        self._connections[connection].hear(message)
                    case Tell(event):
                        self._events.append(event)
                    case End(outcome):
                        self._outcome = outcome
                        self._ended.set()
            self._lock.notify_all()

    def wait_until(self, condition: Callable[[Job], bool]) -> None:
        """Wait until the coordinator knows something of the job, or the job has ended."""
        with self._lock:
            done = self._lock.wait_for(
                lambda: self._ended.is_set() or condition(self._coordinator.job), PATIENCE_SECONDS / 2
            )
        assert done, "what was waited for has not happened"

    def connect(self, membership: ThreadMembership) -> Connection:
        with self._lock:
            connection = len(self._connections) + 1
            self._connections[connection] = membership
            return connection

    def network(self, generation: int) -> MemoryNetwork:
        with self._lock:
            return self._networks.setdefault(generation, MemoryNetwork())

    def _tick(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            with self._lock:
                self._now += TICK_SECONDS * TIMES_FASTER
                self.handle(Tick())

    # ------------------------------------------------------------------------------------------------ the agent

    def _start(self, identity: WorkerIdentity) -> None:
        self.handle(AgentSaid(AGENT, ProcessStarted(identity, pid=identity.incarnation)))
        name = f"worker-{identity.worker}-{identity.incarnation}"
        thread = threading.Thread(target=self._live, args=(identity,), name=name, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _live(self, identity: WorkerIdentity) -> None:
        """One process, from its start to its end."""
        self._identities[threading.get_ident()] = identity
        self._points[identity] = []
        worker: ThreadWorker | None = None
        code: int | None = 1
        try:
            self.point(identity, "start")
            worker = ThreadWorker(self, identity)
            self._returned[identity] = self._script(worker)
            worker.calls.come_to_end()
            worker.membership.leave()
            code = 0
        except Killed:
            code = None
        except JobStopped as stopped:
            code = stopped.exit_code
        except Fenced as fenced:
            self._errors[identity] = fenced
        except BaseException as error:
            self._errors[identity] = error
            if worker is not None:
                with contextlib.suppress(Killed, JobStopped):
                    worker.membership.fail(f"{type(error).__name__}: {error}", "")
        finally:
            self._identities.pop(threading.get_ident())
            if worker is not None:
                worker.session.close()
            self._bury(identity, code)

    def _bury(self, identity: WorkerIdentity, code: int | None) -> None:
        signal = "SIGKILL" if code is None else None
        self.handle(AgentSaid(AGENT, ProcessExited(identity, code, signal)))
        if code == 0 or self._ended.is_set():
            return
        if identity.incarnation <= self._max_restarts:
            self._start(WorkerIdentity(identity.worker, identity.incarnation + 1))
        else:
            self.handle(AgentSaid(AGENT, GaveUp(identity.worker, "it was started again too often")))

    def _join_all(self) -> list[str]:
        for thread in list(self._threads):
            thread.join(PATIENCE_SECONDS / 2)
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _last_points(self) -> dict[str, list[str]]:
        return {f"{who.worker}.{who.incarnation}": points[-3:] for who, points in self._points.items()}

    # ------------------------------------------------------------------------------------------------ faults

    def point(self, identity: WorkerIdentity, name: str) -> None:
        """A process passes a point; it may be its last. After the job's end the agent ends whoever still runs."""
        points = self._points[identity]
        points.append(name)
        if self._ended.is_set():
            raise Killed
        for fault in self._faults:
            if (fault.worker, fault.incarnation) != (identity.worker, identity.incarnation):
                continue
            if len(points) - 1 == fault.number or name == fault.name:
                self._killed.append(identity)
                raise Killed

    def _on_event(self, event: Event) -> None:
        identity = self._identities.get(threading.get_ident())
        if identity is not None and isinstance(event, PhaseStarted):
            self.point(identity, f"{event.phase} {event.round}")


class ThreadMembership(CoordinatorClient):
    """The real client, but for its connection: what it says is heard at once, what it is told comes by `hear`."""

    def __init__(self, job: ThreadJob, identity: WorkerIdentity) -> None:
        super().__init__("in memory", Credentials("thread-job", b"not used"), identity)
        self._job = job
        self._connection: Connection = job.connect(self)

    def join(self, member: Member, *, on_notice: Callable[[Notice], None]) -> int:
        with self._between_points("join"):
            return super().join(member, on_notice=on_notice)

    def meet(self, report: Report) -> Ruling | Replay:
        with self._between_points("meet"):
            return super().meet(report)

    def record_call(self, call: int, result: bytes) -> None:
        with self._between_points("record_call"):
            super().record_call(call, result)

    def report_event(self, event: object) -> None:
        with self._between_points(f"report {type(event).__name__}"):
            super().report_event(event)

    def leave(self) -> None:
        self._job.point(self._identity, "before leave")
        super().leave()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._job.handle(Disconnected(self._connection, "its connection closed"))

    def hear(self, message: ToWorker) -> None:
        """Called under the coordinator's lock."""
        self._take(encode(message))

    def _connect(self) -> None:
        pass

    def _send(self, message: FromWorker) -> None:
        if not self._closing:
            self._job.handle(WorkerSaid(self._connection, self._identity, decode_from_worker(encode(message))))

    @contextlib.contextmanager
    def _between_points(self, name: str) -> Iterator[None]:
        self._job.point(self._identity, f"before {name}")
        yield
        self._job.point(self._identity, f"after {name}")


class _KillableLinks(MemoryLinks):
    """Links whose owner passes a point after each piece that it has sent."""

    def __init__(self, job: ThreadJob, identity: WorkerIdentity, network: MemoryNetwork, rank: int) -> None:
        super().__init__(network, rank, timeout_seconds=PATIENCE_SECONDS)
        self.rank = rank
        self._job = job
        self._identity = identity

    def to(self, peer: int) -> MemoryLink:
        if peer not in self._links:
            self._links[peer] = _KillableLink(self, peer)
        return self._links[peer]

    def point(self, name: str) -> None:
        self._job.point(self._identity, name)

    @property
    def network(self) -> MemoryNetwork:
        return self._network

    @property
    def waiter(self) -> MemoryWaiter:
        return self._waiter


class _KillableLink(MemoryLink):
    def __init__(self, links: _KillableLinks, peer: int) -> None:
        super().__init__(links.network, links.rank, peer, links.waiter)
        self._links = links

    def push(self, piece: memoryview) -> bool:
        pushed = super().push(piece)
        if pushed:
            self._links.point(f"sent to {self.peer}")
        return pushed
