"""A whole job in one thread: model workers, their talk, an agent, delayed messages, crashes, and the real coordinator.

Everything that may happen next is chosen by a seeded random number. A model worker follows the rules of a session
(work, talk, vote, change; meet when cut), over calls of a few rounds each. Its state is its history: for every round
that it holds, the generation whose vote committed it. Two live workers must never disagree about that. Before the last
call it runs the script's tail, which counts when it is rank 0 and holds the state.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from paceline.coordinator.inputs import AgentConnected, AgentSaid, Disconnected, Drop, End, Send, Tell, Tick, WorkerSaid
from paceline.coordinator.membership import Coordinator
from paceline.coordinator.messages import (
    Announced,
    AtEnd,
    Dismiss,
    FencedOff,
    GaveUp,
    Heartbeat,
    Join,
    Joined,
    KillWorker,
    Leave,
    Meet,
    ProcessExited,
    ProcessStarted,
    PushedStop,
    PushedVerdict,
    Received,
    RecordCall,
    Refused,
    Replayed,
    Ruled,
    StartTimedOut,
    StopWorkers,
)
from paceline.coordinator.protocols import Report, RoundState, Ruling, Settlement
from paceline.coordinator.rules import JobRules, Outcome
from paceline.types import Group, Member, WorkerIdentity

AGENT = 1
EOF = "end of the connection"
ROUNDS_OF_CALLS = (2, 1, 3, 1)  # the last is the end of the script, and is not recorded
LAST_CALL = len(ROUNDS_OF_CALLS) - 1

History = tuple[int, ...]


@dataclass
class Worker:
    """A model of one process and its session."""

    identity: WorkerIdentity
    connection: int
    phase: str = "new"
    late: bool = False
    generation: int = 0
    group: Group | None = None
    newest: int = 0
    over: int = 0
    meet_next: bool = False
    call: int = 0
    rounds_in_call: int = 0
    history: History | None = None  # None: it holds no state
    at_end: bool = False
    frozen: bool = False
    is_lost: bool = False  # by the coordinator's word
    to_server: deque[Any] = field(default_factory=deque)
    to_worker: deque[Any] = field(default_factory=deque)

    @property
    def is_alive(self) -> bool:
        return self.phase != "dead"

    @property
    def committed(self) -> int:
        return -1 if self.history is None else len(self.history)


class Simulation:
    """One job. `run` explores, then lets everything that can still happen happen, and checks the end."""

    def __init__(
        self, seed: int, *, workers: int, min_workers: int = 1, num_crashes: int, max_restarts: int = 3
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        rules = JobRules(workers=workers, min_workers=min_workers, start_timeout_seconds=300.0)
        self.coordinator = Coordinator(rules, now=self.now)
        self.num_crashes = num_crashes
        self.max_restarts = max_restarts
        self.workers: dict[int, Worker] = {}  # by place: the newest process
        self.processes: list[Worker] = []
        self.from_agent: deque[Any] = deque([AgentConnected(AGENT, "a")])
        self.to_agent: deque[Any] = deque()
        self.is_ending = False
        self.outcome: Outcome | None = None
        # The members' talk, which the coordinator does not see.
        self.entered: dict[int, dict[WorkerIdentity, tuple[History | None, int, int]]] = defaultdict(dict)
        self.begun: dict[tuple[int, int], set[WorkerIdentity]] = defaultdict(set)
        self.votes: dict[tuple[int, int], dict[WorkerIdentity, int]] = defaultdict(dict)
        # What the coordinator has said.
        self.groups: dict[int, Group] = {}
        self.settled: dict[tuple[int, int], Settlement] = {}
        self.replayed: list[tuple[int, bytes | None]] = []
        self.tails: list[WorkerIdentity] = []  # who did what rank 0 has to do before the last call
        for worker in range(workers):
            self.start(worker, 1)

    # ------------------------------------------------------------------------------------------------ exploring

    def run(self, num_steps: int) -> Outcome:
        for _ in range(num_steps):
            self.step()
        return self.settle()

    def step(self) -> None:
        """One thing happens."""
        alive = [worker for worker in self.processes if worker.is_alive]
        dice = self.random.random()
        if dice < 0.01 and self.num_crashes:
            victim = self.random.choice(alive) if alive else None
            if victim is not None:
                self.num_crashes -= 1
                if self.random.random() < 0.3:
                    victim.frozen = True
                else:
                    self.crash(victim, keep_messages=self.random.random() < 0.5)
        elif dice < 0.02:
            self.tick(0.25)
        elif dice < 0.03 and alive:
            self.suspect(self.random.choice(alive))
        elif dice < 0.55:
            self.deliver_something()
        elif alive:
            self.act(self.random.choice(alive))

    def settle(self) -> Outcome:
        """No more faults; everyone gets his turn until the job has ended and everybody is gone."""
        self.num_crashes = 0
        for _ in range(3000):
            for worker in self.processes:
                worker.frozen = False
            while self.deliver_something():
                pass
            for worker in list(self.processes):
                self.act(worker)
            self.tick(0.25)
            if self.outcome is not None and not any(worker.is_alive for worker in self.processes):
                return self.outcome
        stuck = [f"{worker.identity} {worker.phase} call {worker.call}" for worker in self.processes if worker.is_alive]
        raise AssertionError(f"stuck: outcome {self.outcome}, workers {stuck}")

    # ------------------------------------------------------------------------------------------------ the machinery

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for worker in self.processes:
            if worker.is_alive and not worker.frozen and worker.phase not in ("new", "joining"):
                worker.to_server.append(Heartbeat())
        self.tell_server(Tick())

    def tell_server(self, happened: Any) -> None:
        for effect in self.coordinator.handle(happened, self.now):
            match effect:
                case Send(connection, message):
                    if connection == AGENT:
                        self.to_agent.append(message)
                    else:
                        self.processes[connection - 10].to_worker.append(message)
                        self.note_told(self.processes[connection - 10], message)
                case Drop(connection):
                    self.processes[connection - 10].to_worker.append(EOF)
                case Tell():
                    pass
                case End(outcome):
                    assert self.outcome is None
                    self.outcome = outcome

    def note_told(self, worker: Worker, message: Any) -> None:
        """Check what the coordinator says at the moment in which it says it."""
        if isinstance(message, FencedOff):
            worker.is_lost = True
        if isinstance(message, Refused):
            raise AssertionError(f"{worker.identity} was refused: {message.reason}")
        if isinstance(message, Replayed):
            self.replayed.extend((replay.call, replay.result) for replay in message.replays)
        if isinstance(message, Ruled):
            self.check_ruling(worker, message.ruling)

    def check_ruling(self, worker: Worker, ruling: Ruling) -> None:
        group = ruling.group
        assert group.generation > worker.generation, "generations only grow"
        assert self.groups.setdefault(group.generation, group) == group, "one group for one generation"
        assert group.generation == max(self.groups), "no ruling for an old generation"
        assert worker.identity in [member.identity for member in group.members]
        if group.newcomers:
            assert (worker.identity in group.newcomers) == (worker.history is None), (
                "only who holds nothing is a newcomer"
            )
            assert group.donors
        if ruling.settlement is not Settlement.NOTHING:
            key = (worker.generation, max(worker.committed, 0))
            assert self.settled.setdefault(key, ruling.settlement) is ruling.settlement, "one outcome for one round"

    def deliver_something(self) -> bool:
        """Deliver the oldest message of a random connection. Returns whether there was one."""
        queues: list[tuple[Any, deque[Any]]] = []
        for worker in self.processes:
            if worker.to_server:
                queues.append((("up", worker), worker.to_server))
            if worker.to_worker and worker.is_alive and not worker.frozen:
                queues.append((("down", worker), worker.to_worker))
        if self.from_agent:
            queues.append((("agent says", None), self.from_agent))
        if self.to_agent:
            queues.append((("agent hears", None), self.to_agent))
        if not queues:
            return False
        (kind, worker), queue = self.random.choice(queues)
        message = queue.popleft()
        if kind == "agent says":
            self.tell_server(message)
        elif kind == "agent hears":
            self.agent_hears(message)
        elif kind == "down":
            self.worker_hears(worker, message)
        elif message == EOF:
            worker.is_lost = True
            self.tell_server(Disconnected(worker.connection, "its connection closed"))
        else:
            self.tell_server(WorkerSaid(worker.connection, worker.identity, message))
        return True

    # ------------------------------------------------------------------------------------------------ the agent

    def start(self, place: int, incarnation: int) -> None:
        worker = Worker(WorkerIdentity(place, incarnation), connection=10 + len(self.processes))
        self.workers[place] = worker
        self.processes.append(worker)
        self.from_agent.append(AgentSaid(AGENT, ProcessStarted(worker.identity, pid=1)))

    def agent_hears(self, order: Any) -> None:
        match order:
            case StopWorkers() | Dismiss():
                self.is_ending = True
                for worker in self.processes:
                    if worker.is_alive:
                        self.crash(worker)
            case KillWorker(place, incarnation):
                for worker in self.processes:
                    if worker.identity == WorkerIdentity(place, incarnation) and worker.is_alive:
                        self.crash(worker)

    def crash(self, worker: Worker, *, keep_messages: bool = True) -> None:
        if not keep_messages and worker.to_server:
            for _ in range(self.random.randrange(len(worker.to_server) + 1)):
                worker.to_server.pop()
        self.end_process(worker, code=None)

    def end_process(self, worker: Worker, code: int | None) -> None:
        worker.phase = "dead"
        worker.to_server.append(EOF)
        said = ProcessExited(worker.identity, code, None if code is not None else "SIGKILL")
        self.from_agent.append(AgentSaid(AGENT, said))
        place, incarnation = worker.identity.worker, worker.identity.incarnation
        if code == 0 or self.is_ending:
            return
        if incarnation <= self.max_restarts:
            self.start(place, incarnation + 1)
        else:
            self.from_agent.append(AgentSaid(AGENT, GaveUp(place, "too many restarts")))

    # ------------------------------------------------------------------------------------------------ a worker

    def worker_hears(self, worker: Worker, message: Any) -> None:
        match message:
            case Joined(generation):
                worker.late = generation > 0
                self.meet(worker, RoundState.BOUNDARY)
            case Ruled(ruling):
                self.enter(worker, ruling)
            case Replayed(replays):
                assert worker.history is None
                assert replays[0].call == worker.call
                replay = self.random.choice(replays)
                worker.call = replay.call + 1
                if worker.call == LAST_CALL and not replay.takes_over:
                    self.come_to_end(worker)
                self.meet(worker, RoundState.BOUNDARY)
            case Announced(generation):
                worker.newest = max(worker.newest, generation)
            case PushedVerdict(verdict):
                worker.over = max(worker.over, verdict.generation)
                worker.newest = max(worker.newest, verdict.generation + 1)
            case PushedStop(stop):
                self.end_process(worker, code=stop.exit_code)
            case Received():
                self.end_process(worker, code=0)
            case FencedOff() | StartTimedOut() | "end of the connection":
                self.end_process(worker, code=1)

    def enter(self, worker: Worker, ruling: Ruling) -> None:
        if ruling.settlement is Settlement.COMMIT:
            self.commit(worker, worker.generation)
        worker.group, worker.generation = ruling.group, ruling.group.generation
        worker.newest = max(worker.newest, worker.generation)
        worker.meet_next = False
        if worker.history is None and not ruling.group.newcomers:
            worker.history = ()
        worker.phase = "boundary" if not ruling.group.newcomers else "admitting"

    def meet(self, worker: Worker, state: RoundState, suspects: tuple[WorkerIdentity, ...] = ()) -> None:
        worker.phase = "meeting"
        report = Report(worker.generation, worker.call, worker.committed, state, suspects, "simulated")
        worker.to_server.append(Meet(report))

    def come_to_end(self, worker: Worker) -> None:
        """It has run the script's tail."""
        if worker.history is not None and self.members(worker)[0] == worker.identity:
            self.tails.append(worker.identity)
        worker.at_end = True
        worker.to_server.append(AtEnd())

    def leave(self, worker: Worker) -> None:
        worker.phase = "leaving"
        worker.to_server.append(Leave())

    def members(self, worker: Worker) -> list[WorkerIdentity]:
        assert worker.group is not None
        return [member.identity for member in worker.group.members]

    def gone_peers(self, worker: Worker) -> tuple[WorkerIdentity, ...]:
        """Members that do not talk in this worker's generation (any more)."""
        talking = ("boundary", "admitting", "working", "voted")
        by_identity = {process.identity: process for process in self.processes}
        return tuple(
            identity
            for identity in self.members(worker)
            if (peer := by_identity[identity]).generation > worker.generation
            or not (peer.phase in talking or (peer.phase == "meeting" and peer.generation < worker.generation))
        )

    def is_cut(self, worker: Worker) -> bool:
        return worker.over >= worker.generation or bool(self.gone_peers(worker))

    def act(self, worker: Worker) -> None:
        """The script's thread takes its next step, if it can."""
        if worker.frozen:
            return
        in_tail = worker.call == LAST_CALL and not worker.at_end and worker.history is not None
        if in_tail and worker.phase in ("boundary", "admitting"):
            self.come_to_end(worker)
            return
        match worker.phase:
            case "new":
                worker.phase = "joining"
                place = worker.identity.worker
                worker.to_server.append(Join(Member(worker.identity, "a", f"1.1.1.1:{worker.connection}", place)))
            case "admitting":
                self.admit(worker)
            case "boundary":
                self.begin_round(worker)
            case "working":
                self.talk(worker)
            case "voted":
                self.finish_vote(worker)

    def admit(self, worker: Worker) -> None:
        """Donors hand over their state to the group's newcomers, all together."""
        entered = self.entered[worker.generation]
        entered.setdefault(worker.identity, (worker.history, worker.call, worker.rounds_in_call))
        everyone_is_in = set(entered) >= set(self.members(worker))
        if self.is_cut(worker) and not (everyone_is_in and self.random.random() < 0.5):
            self.meet(worker, RoundState.BOUNDARY, self.gone_peers(worker))
        elif everyone_is_in:
            states = {state for state in entered.values() if state[0] is not None}
            assert len(states) == 1, f"donors hold different states at the same point: {states}"
            history, call, rounds_in_call = states.pop()
            if worker.history is None:
                assert worker.call == call, f"a newcomer at call {worker.call} was let in at call {call}"
                worker.history, worker.rounds_in_call = history, rounds_in_call
            worker.phase = "boundary"

    def begin_round(self, worker: Worker) -> None:
        if worker.meet_next:
            self.meet(worker, RoundState.BOUNDARY)
        elif worker.call == len(ROUNDS_OF_CALLS):
            self.leave(worker)
        else:
            self.begun[worker.generation, worker.committed].add(worker.identity)
            worker.phase = "working"

    def talk(self, worker: Worker) -> None:
        key = (worker.generation, worker.committed)
        if self.begun[key] >= set(self.members(worker)) and not (self.is_cut(worker) and self.random.random() < 0.5):
            self.votes[key][worker.identity] = worker.newest
            worker.phase = "voted"
        elif self.is_cut(worker):
            self.meet(worker, RoundState.WORKING, self.gone_peers(worker))

    def finish_vote(self, worker: Worker) -> None:
        votes = self.votes[worker.generation, worker.committed]
        if set(votes) >= set(self.members(worker)) and not (self.is_cut(worker) and self.random.random() < 0.5):
            worker.meet_next = max(votes.values()) > worker.generation
            self.commit(worker, worker.generation)
            worker.phase = "boundary"
        elif self.is_cut(worker):
            self.meet(worker, RoundState.VOTED, self.gone_peers(worker))

    def suspect(self, worker: Worker) -> None:
        """The network fails this worker for no good reason."""
        if worker.phase not in ("working", "voted") or worker.frozen:
            return
        peers = [identity for identity in self.members(worker) if identity != worker.identity]
        if peers:
            state = RoundState.WORKING if worker.phase == "working" else RoundState.VOTED
            self.meet(worker, state, (self.random.choice(peers),))

    def commit(self, worker: Worker, generation: int) -> None:
        assert worker.history is not None
        worker.history = (*worker.history, generation)
        worker.rounds_in_call += 1
        if worker.rounds_in_call == ROUNDS_OF_CALLS[worker.call]:
            if worker.call < len(ROUNDS_OF_CALLS) - 1:
                worker.to_server.append(RecordCall(worker.call, repr(worker.history).encode()))
            worker.call += 1
            worker.rounds_in_call = 0
        self.check_histories()

    def check_histories(self) -> None:
        """Live workers hold the same rounds, committed by the same votes; none is more than one vote behind."""
        histories = sorted(
            (
                process.history
                for process in self.processes
                if process.is_alive and not process.is_lost and not process.frozen and process.history is not None
                if process.phase != "leaving"
            ),
            key=len,
        )
        for shorter, longer in itertools.pairwise(histories):
            assert longer[: len(shorter)] == shorter, f"a round has two outcomes: {histories}"
            assert len(longer) - len(shorter) <= 1, f"somebody is left behind: {histories}"
