"""A real coordinator and real worker processes: kills, freezes, restarts, replays, failures and good ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from paceline.clock import Deadline
from paceline.coordinator.agent_link import AgentLink
from paceline.coordinator.messages import Dismiss, ForwardEvent, KillWorker, Order, StopWorkers, WorkerHello, encode
from paceline.coordinator.rules import JobRules, Outcome
from paceline.coordinator.server import CoordinatorServer
from paceline.errors import AuthenticationError, ConfigError, CoordinatorLost
from paceline.observability.events import (
    DataSharded,
    Event,
    GroupFormed,
    MemberLost,
    WorkerAwaited,
    WorkerExited,
    WorkerFailed,
    WorkerStarted,
)
from paceline.types import WorkerIdentity
from paceline.wire.channels import dial
from paceline.wire.handshake import Credentials

JOB = Credentials("job", b"secret")
SCRIPT = Path(__file__).with_name("coordinator_worker.py")
PATIENCE_SECONDS = 60.0  # generous: machines are busy, and only failures wait that long
Result = TypeVar("Result")


class Coordinator:
    """A server in a thread with its own event loop."""

    def __init__(self, rules: JobRules, *, port: int = 0) -> None:
        self.rules = rules
        self.port = port
        self.events: queue.Queue[Event] = queue.Queue()
        self._stop = threading.Event()

    def __enter__(self) -> Coordinator:
        started: Future[tuple[asyncio.AbstractEventLoop, CoordinatorServer]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), name="test-coordinator")
        self._thread.start()
        self.loop, self.server = started.result(10)
        self.address = self.server.address
        return self

    def __exit__(self, *details: object) -> None:
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _run(self, started: Future[Any]) -> None:
        self._ended = asyncio.Event()
        async with CoordinatorServer(self.rules, JOB, on_event=self.events.put, port=self.port) as server:
            started.set_result((asyncio.get_running_loop(), server))
            await self._ended.wait()

    def call(self, coroutine: Coroutine[Any, Any, Result], timeout: float = PATIENCE_SECONDS) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def outcome(self, timeout: float = PATIENCE_SECONDS) -> Outcome:
        return self.call(self.server.outcome(), timeout)

    def request_stop(self, *, immediate: bool) -> None:
        async def ask() -> None:
            self.server.request_stop(immediate=immediate, reason="Ctrl-C")

        self.call(ask())

    def event(self, kind: type[Result], timeout: float = PATIENCE_SECONDS) -> Result:
        """The next event of this kind; others are passed over."""
        deadline = Deadline(timeout)
        while True:
            event = self.events.get(timeout=max(0.01, deadline.remaining))
            if isinstance(event, kind):
                return event


class Worker:
    """A worker process on strings."""

    def __init__(
        self, address: str, worker: int, incarnation: int = 1, *, secret: str = "secret", timeout_seconds: float = 30.0
    ) -> None:
        arguments = [address, secret, str(worker), str(incarnation), str(timeout_seconds)]
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.notices: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name=f"test-worker-{worker}")
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            (self.notices if "notice" in said else self.answers).put(said)

    def tell(self, do: str, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **command}) + "\n")
        self.process.stdin.flush()

    def answer(self, timeout: float = PATIENCE_SECONDS) -> dict[str, Any]:
        return self.answers.get(timeout=timeout)

    def notice(self, timeout: float = PATIENCE_SECONDS) -> dict[str, Any]:
        return self.notices.get(timeout=timeout)

    def do(self, do: str, **command: Any) -> dict[str, Any]:
        self.tell(do, **command)
        return self.answer()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


Start = Callable[..., Worker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts worker processes; ends them after the test."""
    workers: list[Worker] = []

    def start_one(*arguments: Any, **options: Any) -> Worker:
        workers.append(Worker(*arguments, **options))
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.end()


def form(coordinator: Coordinator, start: Start, count: int) -> list[Worker]:
    """Start `count` workers and let them meet."""
    workers = [start(coordinator.address, worker) for worker in range(count)]
    for worker in workers:
        assert worker.do("join") == {"done": "join", "generation": 0, "workers": count}
    for worker in workers:
        worker.tell("meet")
    for worker in workers:
        assert worker.answer()["members"] == list(range(count))
    return workers


def test_workers_form_a_group_train_and_leave(start: Start) -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        workers = form(coordinator, start, 2)
        workers[0].do("event")
        assert coordinator.event(GroupFormed) == GroupFormed(1, (0, 1), (), "workers 0, 1 join")
        assert coordinator.event(DataSharded) == DataSharded("test", "by hand", 3, (2, 1))
        for worker in workers:
            worker.do("leave")
        assert coordinator.outcome() == Outcome(0, "the job is complete")
        assert coordinator.events.empty()


def test_a_kill_is_told_to_the_survivors_within_a_fraction_of_a_second(start: Start) -> None:
    with Coordinator(JobRules(workers=3)) as coordinator:
        workers = form(coordinator, start, 3)
        killed = time.monotonic()
        workers[0].signal(signal.SIGKILL)
        for worker in workers[1:]:
            notice = worker.notice()
            assert (notice["notice"], notice["lost"]) == ("Verdict", [0])
            assert notice["time"] - killed < 2.0  # a few milliseconds on a machine that is not busy
            worker.tell("meet", committed=4, state="working")
        for worker in workers[1:]:
            ruling = worker.answer()
            assert (ruling["generation"], ruling["members"], ruling["settlement"]) == (2, [1, 2], "discard")
            assert ruling["time"] - killed < 3.0


def test_a_kill_while_the_others_meet_leaves_nobody_waiting(start: Start) -> None:
    with Coordinator(JobRules(workers=3)) as coordinator:
        workers = form(coordinator, start, 3)
        workers[0].tell("meet", committed=5, suspects=[2])
        workers[1].tell("meet", committed=4, state="voted", suspects=[2])
        assert workers[2].notice()["lost"] == []
        workers[0].signal(signal.SIGKILL)
        assert workers[2].notice()["lost"] == [0]
        workers[2].tell("meet", committed=4, state="voted")
        for worker in workers[1:]:
            ruling = worker.answer()
            assert (ruling["members"], ruling["settlement"]) == ([1, 2], "commit")


def test_a_restarted_worker_replays_what_has_ended_and_is_let_in(start: Start) -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        first, second = form(coordinator, start, 2)
        for worker in (first, second):
            worker.do("record", call=0, result="history of call 0")
        second.signal(signal.SIGKILL)
        first.notice()
        assert first.do("meet", committed=7, state="working", call=1)["settlement"] == "discard"
        again = start(coordinator.address, 1, 2)
        assert again.do("join")["generation"] == 2
        replay = again.do("meet", call=0)
        assert (replay["replay"], replay["result"]) == (0, "history of call 0")
        again.tell("meet", call=1)
        assert first.do("newest", at_least=3)["newest"] == 3
        ruling = first.do("meet", committed=8, call=1)
        assert (ruling["generation"], ruling["members"], ruling["newcomers"]) == (3, [0, 1], [1])
        assert again.answer()["newcomers"] == [1]
        again.do("leave")
        first.do("leave")
        assert coordinator.outcome().exit_code == 0


def test_a_call_that_ends_while_a_restarted_worker_waits_is_replayed_to_it(start: Start) -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        first, second = form(coordinator, start, 2)
        second.signal(signal.SIGKILL)
        first.notice()
        first.do("meet", committed=3, state="voted")
        again = start(coordinator.address, 1, 2)
        again.do("join")
        again.tell("meet", call=0)
        first.do("newest", at_least=3)
        first.do("record", call=0, result="the end")
        assert again.answer()["result"] == "the end"


def test_a_frozen_worker_is_lost_by_its_silence_and_fenced_when_it_thaws(start: Start) -> None:
    rules = JobRules(workers=2, heartbeat_seconds=0.2, lost_after_seconds=2.0)
    with Coordinator(rules) as coordinator:
        first, second = form(coordinator, start, 2)
        frozen = time.monotonic()
        second.signal(signal.SIGSTOP)
        notice = first.notice()
        assert "silent for" in notice["reason"]
        assert 1.5 < notice["time"] - frozen < 6.0
        assert first.do("meet", committed=0, state="working")["members"] == [0]
        second.signal(signal.SIGCONT)
        assert second.do("meet", committed=0, state="working")["error"] == "Fenced"


def test_a_worker_that_computes_in_python_is_not_taken_for_dead(start: Start) -> None:
    rules = JobRules(workers=2, heartbeat_seconds=0.2, lost_after_seconds=2.0)
    with Coordinator(rules) as coordinator:
        first, second = form(coordinator, start, 2)
        first.tell("compute", seconds=4.0)
        second.do("compute", seconds=4.0)
        first.answer()
        with pytest.raises(queue.Empty):
            coordinator.event(MemberLost, timeout=0.1)


def test_a_second_process_for_a_place_is_refused(start: Start) -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        form(coordinator, start, 2)
        twin = start(coordinator.address, 0)
        answer = twin.do("join")
        assert answer["error"] == "ProtocolError"
        assert answer["message"] == "the coordinator refused worker 0: worker 0, incarnation 1, is here already"


def test_a_process_with_the_wrong_secret_is_refused(start: Start) -> None:
    with Coordinator(JobRules(workers=1)) as coordinator:
        stranger = start(coordinator.address, 0, secret="guess")
        assert stranger.do("join")["error"] == "AuthenticationError"


def test_a_start_that_takes_too_long_is_told_to_those_who_wait(start: Start) -> None:
    rules = JobRules(workers=2, hosts=("a", "b"), start_timeout_seconds=1.5, notice_seconds=0.5)
    with Coordinator(rules) as coordinator:
        link = coordinator.call(AgentLink.connect(coordinator.address, JOB, host="b"))
        for number in range(2):
            coordinator.call(link.report_started(number, 1, 100))
        worker = start(coordinator.address, 0)
        worker.do("join")
        answer = worker.do("meet")
        assert answer["error"] == "StartTimeout"
        assert answer["message"] == "1 of 2 workers did not start within 2 s: worker 1 on b runs, but has not joined"
        assert coordinator.outcome().exit_code == 124
        assert coordinator.event(WorkerAwaited).host == "b"
        coordinator.call(link.close())


def test_a_failure_stops_all_others_at_once_and_is_the_jobs(start: Start) -> None:
    with Coordinator(JobRules(workers=3)) as coordinator:
        workers = form(coordinator, start, 3)
        workers[1].tell("meet", committed=0, state="working")
        assert workers[0].do("fail") == {"done": "fail"}
        stopped = workers[1].answer()
        assert (stopped["error"], stopped["code"]) == ("JobStopped", 1)
        assert "worker 0 failed: ValueError: no" in stopped["message"]
        workers[2].notice()
        outcome = coordinator.outcome()
        assert outcome.exit_code == 1
        assert outcome.failure is not None
        assert outcome.failure.traceback.startswith("Traceback")
        assert coordinator.event(WorkerFailed).worker == 0


def test_a_failure_before_the_join_is_told_too(start: Start) -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        worker = start(coordinator.address, 1)
        assert worker.do("fail") == {"done": "fail"}
        worker.do("close")
        assert coordinator.outcome().reason == "worker 1 failed: ValueError: no"


def test_a_gentle_stop_reaches_the_members_and_ends_when_they_have_left(start: Start) -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        workers = form(coordinator, start, 2)
        coordinator.request_stop(immediate=False)
        for worker in workers:
            assert worker.notice()["notice"] == "Stop"
            worker.do("leave")
        assert coordinator.outcome() == Outcome(130, "Ctrl-C")


def test_an_immediate_stop_ends_every_wait(start: Start) -> None:
    with Coordinator(JobRules(workers=2, notice_seconds=0.2)) as coordinator:
        worker = start(coordinator.address, 0)
        worker.do("join")
        worker.tell("meet")
        coordinator.event(WorkerAwaited)
        coordinator.request_stop(immediate=True)
        answer = worker.answer()
        assert (answer["error"], answer["code"]) == ("JobStopped", 130)


def test_a_coordinator_that_is_gone_ends_the_wait_within_its_time(start: Start) -> None:
    with Coordinator(JobRules(workers=2, notice_seconds=0.2)) as coordinator:
        worker = start(coordinator.address, 0, timeout_seconds=1.0)
        worker.do("join")
        worker.tell("meet")
        coordinator.event(WorkerAwaited)
    answer = worker.answer()
    assert answer["error"] == "CoordinatorLost"
    assert worker.do("record", call=0, result="nobody hears it") == {"done": "record"}
    assert worker.do("leave")["error"] == "CoordinatorLost"


def test_a_worker_waits_for_a_coordinator_that_is_not_up_yet(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        port = placeholder.getsockname()[1]
    worker = start(f"127.0.0.1:{port}", 0, timeout_seconds=20.0)
    worker.tell("join")
    with pytest.raises(queue.Empty):
        worker.answer(timeout=1.0)
    with Coordinator(JobRules(workers=1), port=port):
        assert worker.answer()["done"] == "join"


def test_a_port_that_is_taken_is_told_clearly() -> None:
    with Coordinator(JobRules(workers=1)) as coordinator:
        _, port = coordinator.address.rsplit(":", 1)

        async def listen() -> None:
            async with CoordinatorServer(JobRules(workers=1), JOB, port=int(port)):
                pass

        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, port {port}.*give another port"):
            asyncio.run(listen())


def test_an_agents_reports_arrive_and_orders_come_back(start: Start) -> None:
    rules = JobRules(workers=2, heartbeat_seconds=0.2, lost_after_seconds=2.0)
    with Coordinator(rules) as coordinator:
        link = coordinator.call(AgentLink.connect(coordinator.address, JOB, host="b"))
        orders: queue.Queue[Order] = queue.Queue()

        async def follow() -> None:
            async for order in link.orders():
                orders.put(order)

        following = asyncio.run_coroutine_threadsafe(follow(), coordinator.loop)
        for worker in range(2):
            coordinator.call(link.report_started(worker, 1, 100 + worker))
        assert coordinator.event(WorkerStarted) == WorkerStarted(0, 1, 100, "b")
        workers = form(coordinator, start, 2)
        workers[1].signal(signal.SIGSTOP)
        order = orders.get(timeout=PATIENCE_SECONDS)
        assert isinstance(order, KillWorker)
        assert (order.worker, order.incarnation) == (1, 1)
        workers[1].signal(signal.SIGKILL)
        coordinator.call(link.report_exited(1, 1, None, "SIGKILL"))
        assert coordinator.event(WorkerExited) == WorkerExited(1, 1, None, "SIGKILL")
        coordinator.call(link.report_gave_up(1, "it was killed too often"))
        assert workers[0].do("meet", committed=2, state="working")["members"] == [0]
        coordinator.request_stop(immediate=False)
        assert orders.get(timeout=PATIENCE_SECONDS) == StopWorkers("Ctrl-C", False, 130)
        workers[0].do("leave")
        assert orders.get(timeout=PATIENCE_SECONDS) == StopWorkers("Ctrl-C", True, 130)
        following.result(10)
        coordinator.call(link.close())


def test_a_complete_job_dismisses_what_still_starts(start: Start) -> None:
    with Coordinator(JobRules(workers=1)) as coordinator:
        link = coordinator.call(AgentLink.connect(coordinator.address, JOB, host="b"))
        (worker,) = form(coordinator, start, 1)
        worker.do("leave")

        async def first_order() -> Order:
            return await link.orders().__anext__()

        assert coordinator.call(first_order()) == Dismiss("the job is complete")
        coordinator.call(link.close())


def test_an_agent_without_a_coordinator_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        port = placeholder.getsockname()[1]
    with pytest.raises(CoordinatorLost, match="cannot be reached"):
        asyncio.run(AgentLink.connect(f"127.0.0.1:{port}", JOB, host="b", timeout_seconds=0.5))


def test_an_agent_with_the_wrong_secret_is_refused() -> None:
    with Coordinator(JobRules(workers=1)) as coordinator:
        guess = Credentials("job", b"guess")
        with pytest.raises(AuthenticationError):
            coordinator.call(AgentLink.connect(coordinator.address, guess, host="b"))


def test_messages_that_make_no_sense_harm_nobody(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    with Coordinator(JobRules(workers=1)) as coordinator, caplog.at_level(logging.WARNING):
        hello = encode(WorkerHello(WorkerIdentity(0, 1)))
        channel = dial(coordinator.address, JOB, hello, deadline=Deadline(5))
        channel.send(encode(ForwardEvent("NoSuchEvent", {})))
        channel.send(b"\xc1 garbage")
        with pytest.raises(ConnectionError):
            channel.receive(5.0)
        channel.close()
        stranger = dial(coordinator.address, JOB, b"not a hello", deadline=Deadline(5))
        with pytest.raises(ConnectionError):
            stranger.receive(5.0)
        stranger.close()
        (worker,) = form(coordinator, start, 1)
        worker.do("leave")
        assert coordinator.outcome().exit_code == 0
    assert "an event 'NoSuchEvent' is not known" in caplog.text
    assert "a worker's message that cannot be read" in caplog.text


def test_a_peer_that_takes_nothing_holds_up_nobody(start: Start) -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        hello = encode(WorkerHello(WorkerIdentity(1, 7)))
        deaf = dial(coordinator.address, JOB, hello, deadline=Deadline(5))
        workers = form(coordinator, start, 2)
        for worker in workers:
            worker.do("leave")
        assert coordinator.outcome().exit_code == 0
        deaf.close()
