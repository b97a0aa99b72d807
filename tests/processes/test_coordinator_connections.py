"""A real coordinator and what connects to it: agents, strangers, and workers that lose it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import signal
import socket

import pytest

from paceline.clock import Deadline
from paceline.coordinator.agent_link import AgentLink
from paceline.coordinator.messages import Dismiss, ForwardEvent, KillWorker, Order, StopWorkers, WorkerHello, encode
from paceline.coordinator.rules import JobRules
from paceline.coordinator.server import CoordinatorServer
from paceline.errors import AuthenticationError, ConfigError, CoordinatorLost
from paceline.observability.events import (
    WorkerAwaited,
    WorkerExited,
    WorkerStarted,
)
from paceline.types import WorkerIdentity
from paceline.wire.channels import dial
from paceline.wire.handshake import Credentials
from processes.coordinator_jobs import JOB, PATIENCE_SECONDS, Coordinator, Worker, form


def test_a_coordinator_that_is_gone_ends_the_wait_within_its_time() -> None:
    with contextlib.ExitStack() as stack:
        with Coordinator(JobRules(workers=2, notice_seconds=0.2)) as coordinator:
            worker = stack.enter_context(Worker(coordinator.address, 0, timeout_seconds=5.0))
            worker.do("join")
            worker.tell("meet")
            coordinator.event(WorkerAwaited)
        assert worker.answer()["error"] == "CoordinatorLost"
        assert worker.do("record", call=0, result="nobody hears it") == {"done": "record"}
        assert worker.do("leave")["error"] == "CoordinatorLost"


def test_a_worker_waits_for_a_coordinator_that_is_not_up_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        port = placeholder.getsockname()[1]
    with Worker(f"127.0.0.1:{port}", 0) as worker:
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


def test_an_agents_reports_arrive_and_orders_come_back() -> None:
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
        workers = form(coordinator, 2)
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


def test_a_complete_job_dismisses_what_still_starts() -> None:
    with Coordinator(JobRules(workers=1)) as coordinator:
        link = coordinator.call(AgentLink.connect(coordinator.address, JOB, host="b"))
        (worker,) = form(coordinator, 1)
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


def test_messages_that_make_no_sense_harm_nobody(caplog: pytest.LogCaptureFixture) -> None:
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
        (worker,) = form(coordinator, 1)
        worker.do("leave")
        assert coordinator.outcome().exit_code == 0
    assert "an event 'NoSuchEvent' is not known" in caplog.text
    assert "a worker's message that cannot be read" in caplog.text


def test_a_peer_that_takes_nothing_holds_up_nobody() -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        hello = encode(WorkerHello(WorkerIdentity(1, 7)))
        deaf = dial(coordinator.address, JOB, hello, deadline=Deadline(5))
        workers = form(coordinator, 2)
        for worker in workers:
            worker.do("leave")
        assert coordinator.outcome().exit_code == 0
        deaf.close()
