"""A coordinator in a thread and worker processes on strings, for the tests beside this file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from paceline.clock import Deadline
from paceline.coordinator.rules import JobRules, Outcome
from paceline.coordinator.server import CoordinatorServer
from paceline.observability.events import Event
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
        self._workers = contextlib.ExitStack()

    def __enter__(self) -> Coordinator:
        started: Future[tuple[asyncio.AbstractEventLoop, CoordinatorServer]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), name="test-coordinator")
        self._thread.start()
        self.loop, self.server = started.result(PATIENCE_SECONDS)
        self.address = self.server.address
        return self

    def __exit__(self, *details: object) -> None:
        self._workers.close()
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _run(self, started: Future[Any]) -> None:
        self._ended = asyncio.Event()
        async with CoordinatorServer(self.rules, JOB, on_event=self.events.put, port=self.port) as server:
            started.set_result((asyncio.get_running_loop(), server))
            await self._ended.wait()

    def start(self, worker: int, incarnation: int = 1, **options: Any) -> Worker:
        """A worker process, which is ended with the coordinator."""
        return self._workers.enter_context(Worker(self.address, worker, incarnation, **options))

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

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *details: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def form(coordinator: Coordinator, count: int) -> list[Worker]:
    """Start `count` workers and let them meet."""
    workers = [coordinator.start(worker) for worker in range(count)]
    for worker in workers:
        assert worker.do("join") == {"done": "join", "generation": 0, "workers": count}
    for worker in workers:
        worker.tell("meet")
    for worker in workers:
        assert worker.answer()["members"] == list(range(count))
    return workers
