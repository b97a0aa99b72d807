"""The agent: starts the workers of one host, watches them, starts them again, and leaves nothing behind.

It decides nothing about the job. The coordinator hears of every start and end through `AgentLink` and answers with
orders; whether a place is filled again is the pure decision in `restart.py`. It knows no more of the coordinator than
the link, so it runs as well on another host. Next file: `local.py`, an agent and a coordinator on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from paceline.clusters.detection import count_out_of_memory_kills
from paceline.clusters.environment import JobContext, worker_command, worker_environment
from paceline.clusters.exits import Exit, exit_of
from paceline.clusters.placement import Place
from paceline.clusters.process import WorkerProcess
from paceline.clusters.restart import GiveUp, Restart, RestartRules, decide
from paceline.coordinator.messages import Dismiss, KillWorker, Order, StopWorkers
from paceline.errors import CoordinatorLost
from paceline.observability.console import Stream

logger = logging.getLogger("paceline.clusters.agent")

ORDER_SECONDS = 0.5  # a failure that was reported stops the job within this time, instead of a restart
SECOND_NOTICE_SECONDS = 1.0
REAP_SECONDS = 10.0


class Coordinator(Protocol):
    """What an agent needs of the coordinator; `AgentLink` is it, and says more. Reports raise `CoordinatorLost`."""

    async def report_started(self, worker: int, incarnation: int, pid: int) -> None: ...

    async def report_exited(self, worker: int, incarnation: int, exit_code: int | None, signal: str | None) -> None: ...

    async def report_gave_up(self, worker: int, reason: str) -> None: ...

    def orders(self) -> AsyncIterator[Order]: ...


class WorkerOutput(Protocol):
    """Where workers' output goes. Called in the event loop; only `ready` may wait."""

    def started(self, worker: int, incarnation: int, pid: int) -> None: ...

    def write(self, worker: int, stream: Stream, data: bytes) -> None: ...

    def ended(self, worker: int) -> None:
        """This incarnation writes no more."""

    async def ready(self) -> None:
        """Return when more may be written."""


class GroupWatch(Protocol):
    """Someone who must know which process groups exist."""

    def started(self, group: int) -> None: ...

    def ended(self, group: int) -> None: ...


@dataclass(frozen=True)
class HostPlan:
    """What an agent is to run.

    Attributes:
        context: what the job's workers share.
        places: the workers of this host.
        python: the interpreter.
        inherited: environment variables that the workers get besides their own.
        terminals: streams that look like a terminal to worker 0.
    """

    context: JobContext
    places: tuple[Place, ...]
    python: str
    inherited: Mapping[str, str] = field(repr=False)
    terminals: frozenset[Stream] = frozenset()


class Agent:
    """The agent of one host. Use it from the main thread: `WorkerProcess.start` says why.

    agent = Agent(plan, link, output, watch, RestartRules())
    await agent.run()           # until the job has ended; then no process of it is left
    """

    def __init__(
        self,
        plan: HostPlan,
        link: Coordinator,
        output: WorkerOutput,
        watch: GroupWatch,
        rules: RestartRules,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._link = link
        self._output = output
        self._watch = watch
        self._rules = rules
        self._clock = clock
        self._grace_seconds = plan.context.spec.grace
        self._explained_kills = count_out_of_memory_kills()
        self._running: dict[int, tuple[int, WorkerProcess]] = {}  # worker -> incarnation, process
        self._stopping = asyncio.Event()  # start no worker any more
        self._ending = asyncio.Event()  # and end those that run

    async def run(self) -> None:
        """Keep the workers running until the coordinator or `end` says otherwise. Raises `CoordinatorLost`."""
        keepers = {asyncio.create_task(self._keep(place)) for place in self._plan.places}
        listener = asyncio.create_task(self._follow_orders())
        ending = asyncio.create_task(self._ending.wait())
        waiting = {listener, ending, *keepers}
        try:
            while not (listener.done() or ending.done() or any(map(_has_failed, keepers))):
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.end()
            await self._end_all(keepers)
            listener.cancel()
            await asyncio.wait({listener, ending})
        for task in (*keepers, listener):
            if _has_failed(task):
                await task

    def end(self) -> None:
        """The job has ended: end what still runs, gently at first."""
        self._stopping.set()
        self._ending.set()

    def kill(self) -> None:
        """End everything at this moment."""
        self.end()
        self._signal_all(signal.SIGKILL)

    # -------------------------------------------------------------------------------------------------- one worker

    async def _keep(self, place: Place) -> None:
        """Fill one place until its worker ends well, is given up, or the job stops."""
        lifetimes: tuple[float, ...] = ()
        while not self._stopping.is_set():
            began = self._clock()
            end = await self._run_once(place, incarnation=len(lifetimes) + 1)
            lifetimes = (*lifetimes, self._clock() - began)
            if end is None or end.is_good or await self._stops_within(ORDER_SECONDS if end.signal is None else 0.0):
                return
            match decide(end, lifetimes, self._rules):
                case Restart(after_seconds):
                    await self._stops_within(after_seconds)
                case GiveUp(reason):
                    await self._tell(self._link.report_gave_up(place.worker, reason))
                    return

    async def _run_once(self, place: Place, incarnation: int) -> Exit | None:
        """One incarnation, from start to end; None when it could not even be started."""
        plan = self._plan
        worker = place.worker
        try:
            process = await WorkerProcess.start(
                str(worker),
                worker_command(plan.context.spec, plan.python),
                worker_environment(plan.inherited, plan.context, place, incarnation),
                receive=lambda stream, data: self._output.write(worker, stream, data),
                ready=self._output.ready,
                terminals=plan.terminals if worker == 0 else frozenset(),
            )
        except OSError as error:
            reason = f"worker {worker} cannot be started: {plan.python}: {error.strerror or error}"
            await self._tell(self._link.report_gave_up(worker, reason))
            return None
        self._running[worker] = (incarnation, process)
        self._watch.started(process.pid)
        self._output.started(worker, incarnation, process.pid)
        try:
            await self._tell(self._link.report_started(worker, incarnation, process.pid))
            code = await process.exited()
        finally:
            process.send_signal(signal.SIGKILL)  # does nothing after the end; otherwise this task was cancelled
            del self._running[worker]
            self._watch.ended(process.pid)
        end = exit_of(worker, incarnation, code, out_of_memory=self._was_killed_for_memory(process, code))
        await self._tell(self._link.report_exited(worker, incarnation, end.exit_code, end.told_signal))
        await process.drained()
        self._output.ended(worker)
        return end

    def _was_killed_for_memory(self, process: WorkerProcess, code: int) -> bool:
        """The kernel's count of kills has risen, and nobody here did it. One rise explains one death."""
        if code != -signal.SIGKILL or process.was_killed_here or count_out_of_memory_kills() <= self._explained_kills:
            return False
        self._explained_kills += 1
        return True

    async def _stops_within(self, seconds: float) -> bool:
        """Wait for the job to stop, so long at most; whether it does."""
        if not self._stopping.is_set() and seconds > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    async def _tell(self, report: Awaitable[None]) -> None:
        """Send a report. Once the job is ending the coordinator may be gone first, and needs no more reports."""
        try:
            await report
        except CoordinatorLost:
            if not self._ending.is_set():
                raise

    # ------------------------------------------------------------------------------------------------- all of them

    async def _follow_orders(self) -> None:
        async for order in self._link.orders():
            match order:
                case StopWorkers(immediate=False):
                    # Members stop by themselves at the round's end; a worker that is no member yet takes the signal
                    # as its end (see `cli/worker.py`). Only the worker: its helpers are needed until then.
                    self._stopping.set()
                    self._signal_all(signal.SIGTERM, whole_group=False)
                case StopWorkers() | Dismiss():
                    self.end()
                case KillWorker(worker, incarnation):
                    running = self._running.get(worker)
                    if running and running[0] == incarnation:
                        running[1].send_signal(signal.SIGKILL)
                case never:
                    _assert_never(never)

    def _signal_all(self, number: signal.Signals, *, whole_group: bool = True) -> None:
        for _, process in self._running.values():
            process.send_signal(number, whole_group=whole_group)

    async def _end_all(self, keepers: set[asyncio.Task[None]]) -> None:
        """SIGTERM; again for those who were members and had the time to stop by themselves; SIGKILL."""
        steps = (
            (signal.SIGTERM, min(SECOND_NOTICE_SECONDS, self._grace_seconds)),
            (signal.SIGTERM, max(0.0, self._grace_seconds - SECOND_NOTICE_SECONDS)),
            (signal.SIGKILL, REAP_SECONDS),
        )
        for number, seconds in steps:
            self._signal_all(number)
            _, keepers = await asyncio.wait(keepers, timeout=seconds) if keepers else (set(), set())
        for worker, (_, process) in self._running.items():
            logger.warning(
                "worker %d (process %d) does not end even by SIGKILL; it is left to the kernel", worker, process.pid
            )
        for keeper in keepers:
            keeper.cancel()


def _assert_never(order: NoReturn) -> NoReturn:
    raise AssertionError(f"not an order: {order!r}")


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
