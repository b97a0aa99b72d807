"""The agent with real worker processes and a coordinator that is played by the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launching import await_gone
from paceline.clusters import agent as agent_module
from paceline.clusters.agent import Agent, HostPlan
from paceline.clusters.environment import JobContext
from paceline.clusters.placement import Place
from paceline.clusters.restart import RestartRules
from paceline.clusters.spec import JobSpec
from paceline.coordinator.messages import Dismiss, KillWorker, Order, StopWorkers
from paceline.errors import CoordinatorLost
from paceline.observability.console import Stream

DEADLINE_SECONDS = 60.0
STAYS = "import signal\nprint('here', flush=True)\nwhile True: signal.pause()\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAYS


@dataclass
class PlayedCoordinator:
    """Keeps what was reported, and passes on the orders that the test puts."""

    reports: asyncio.Queue[tuple[object, ...]] = field(default_factory=asyncio.Queue)
    to_give: asyncio.Queue[Order | None] = field(default_factory=asyncio.Queue)

    async def report_started(self, worker: int, incarnation: int, pid: int) -> None:
        self.reports.put_nowait(("started", worker, incarnation, pid))

    async def report_exited(self, worker: int, incarnation: int, exit_code: int | None, signal: str | None) -> None:
        self.reports.put_nowait(("exited", worker, incarnation, exit_code, signal))

    async def report_gave_up(self, worker: int, reason: str) -> None:
        self.reports.put_nowait(("gave up", worker, reason))

    async def orders(self) -> AsyncIterator[Order]:
        while True:
            order = await self.to_give.get()
            if order is None:
                raise CoordinatorLost("the test has gone")
            yield order
            if isinstance(order, Dismiss) or (isinstance(order, StopWorkers) and order.immediate):
                return

    async def next(self, kind: str) -> tuple[object, ...]:
        report = await asyncio.wait_for(self.reports.get(), DEADLINE_SECONDS)
        assert report[0] == kind
        return report[1:]


@dataclass
class KeptOutput:
    """What workers said, and which process groups exist."""

    said: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    groups: set[int] = field(default_factory=set)

    def started(self, *identity: int) -> None:
        if len(identity) == 1:
            self.groups.add(identity[0])

    def ended(self, number: int) -> None:
        self.groups.discard(number)

    def write(self, worker: int, stream: Stream, data: bytes) -> None:
        self.said.put_nowait(data)

    async def ready(self) -> None:
        return

    async def hear(self) -> bytes:
        return await asyncio.wait_for(self.said.get(), DEADLINE_SECONDS)


@dataclass
class Played:
    coordinator: PlayedCoordinator
    output: KeptOutput
    agent: Agent
    running: asyncio.Task[None]

    async def end(self) -> None:
        await asyncio.wait_for(self.running, DEADLINE_SECONDS)


@contextlib.asynccontextmanager
async def played(
    folder: Path, script: str, *, python: str = sys.executable, rules: RestartRules | None = None, grace: float = 30.0
) -> AsyncIterator[Played]:
    """An agent with one worker, number 3 of its job."""
    (folder / "train.py").write_text(script)
    spec = JobSpec(script=str(folder / "train.py"), workers=4, seed=1, grace=grace)
    context = JobContext(spec, "job", "127.0.0.1:1", str(folder / "secret"), "here", os.getpid(), folder)
    plan = HostPlan(context, (Place(3, 0, threads=1),), python, os.environ)
    coordinator, output = PlayedCoordinator(), KeptOutput()
    agent = Agent(plan, coordinator, output, output, rules or RestartRules())
    running = asyncio.create_task(agent.run())
    try:
        yield Played(coordinator, output, agent, running)
    finally:
        agent.kill()
        await asyncio.wait({running}, timeout=DEADLINE_SECONDS)
        assert output.groups == set()


def test_a_start_and_a_good_end_are_reported_and_that_is_all(tmp_path: Path) -> None:
    async def play() -> None:
        async with played(tmp_path, "import os\nos.write(1, b'hello\\n')\n") as scene:
            worker, incarnation, pid = await scene.coordinator.next("started")
            assert (worker, incarnation) == (3, 1)
            assert await scene.output.hear() == b"hello\n"
            assert await scene.coordinator.next("exited") == (3, 1, 0, None)
            await_gone(int(str(pid)))
            assert not scene.running.done()  # it waits to be told
            scene.coordinator.to_give.put_nowait(Dismiss("complete"))
            await scene.end()
            assert scene.coordinator.reports.empty()

    asyncio.run(play())


def test_an_order_to_kill_meets_only_the_process_that_is_meant(tmp_path: Path) -> None:
    async def play() -> None:
        async with played(tmp_path, STAYS) as scene:
            await scene.coordinator.next("started")
            await scene.output.hear()
            scene.coordinator.to_give.put_nowait(KillWorker(3, 2, "not this one"))
            scene.coordinator.to_give.put_nowait(KillWorker(0, 1, "nor this"))
            scene.coordinator.to_give.put_nowait(KillWorker(3, 1, "silent"))
            assert await scene.coordinator.next("exited") == (3, 1, None, "SIGKILL")
            assert (await scene.coordinator.next("started"))[:2] == (3, 2)

    asyncio.run(play())


def test_a_frozen_worker_is_killed_all_the_same(tmp_path: Path) -> None:
    async def play() -> None:
        async with played(tmp_path, STAYS, grace=0.0) as scene:
            _, _, pid = await scene.coordinator.next("started")
            await scene.output.hear()
            os.kill(int(str(pid)), signal.SIGSTOP)
            scene.coordinator.to_give.put_nowait(StopWorkers("enough", True, 1))
            assert await scene.coordinator.next("exited") == (3, 1, None, "SIGKILL")
            await scene.end()

    asyncio.run(play())


def test_after_a_clean_stop_nothing_is_started_again(tmp_path: Path) -> None:
    async def play() -> None:
        async with played(tmp_path, STAYS) as scene:
            await scene.coordinator.next("started")
            await scene.output.hear()
            scene.coordinator.to_give.put_nowait(StopWorkers("enough", False, 130))
            assert await scene.coordinator.next("exited") == (3, 1, None, "SIGTERM")
            scene.agent.end()
            await scene.end()
            assert scene.coordinator.reports.empty()

    asyncio.run(play())


def test_who_ignores_the_gentle_word_is_killed_after_the_grace(tmp_path: Path) -> None:
    async def play() -> None:
        async with played(tmp_path, STUBBORN, grace=0.1) as scene:
            await scene.coordinator.next("started")
            await scene.output.hear()
            scene.coordinator.to_give.put_nowait(StopWorkers("enough", True, 1))
            assert await scene.coordinator.next("exited") == (3, 1, None, "SIGKILL")
            await scene.end()

    asyncio.run(play())


def test_a_coordinator_that_is_lost_ends_the_workers(tmp_path: Path) -> None:
    async def play() -> None:
        async with played(tmp_path, STAYS) as scene:
            _, _, pid = await scene.coordinator.next("started")
            await scene.output.hear()
            scene.coordinator.to_give.put_nowait(None)
            with pytest.raises(CoordinatorLost, match="the test has gone"):
                await scene.end()
            await_gone(int(str(pid)))

    asyncio.run(play())


def test_a_worker_that_cannot_be_started_is_given_up_with_the_reason(tmp_path: Path) -> None:
    async def play() -> None:
        async with played(tmp_path, STAYS, python="/no/python") as scene:
            reason = "worker 3 cannot be started: /no/python: No such file or directory"
            assert await scene.coordinator.next("gave up") == (3, reason)

    asyncio.run(play())


@pytest.fixture
def memory_kills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kernel's count, in the test's hands."""
    count = [5]
    monkeypatch.setattr(agent_module, "count_out_of_memory_kills", lambda: count[0])
    return count


def test_a_kill_for_memory_is_named_and_one_rise_explains_one_death(tmp_path: Path, memory_kills: list[int]) -> None:
    async def play() -> None:
        rules = RestartRules(max_restarts=1)
        async with played(tmp_path, STAYS, rules=rules) as scene:
            _, _, pid = await scene.coordinator.next("started")
            await scene.output.hear()
            memory_kills[0] += 1
            os.kill(int(str(pid)), signal.SIGKILL)
            assert await scene.coordinator.next("exited") == (3, 1, None, "SIGKILL, out of memory")
            _, _, pid = await scene.coordinator.next("started")
            await scene.output.hear()
            os.kill(int(str(pid)), signal.SIGKILL)
            assert await scene.coordinator.next("exited") == (3, 2, None, "SIGKILL")
            assert (await scene.coordinator.next("gave up"))[0] == 3

    asyncio.run(play())
