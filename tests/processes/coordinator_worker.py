"""A worker process that does what its standard input says, line by line, and tells on its standard output.

It is started by `test_coordinator.py`; between commands its script's thread does nothing, like a worker that computes.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

from paceline.coordinator.client import CoordinatorClient
from paceline.coordinator.protocols import Notice, Replay, Report, RoundState
from paceline.errors import PacelineError
from paceline.observability.events import DataSharded
from paceline.types import Member, WorkerIdentity
from paceline.wire.handshake import Credentials

lock = threading.Lock()


def tell(**answer: Any) -> None:
    with lock:
        print(json.dumps(answer), flush=True)


def on_notice(notice: Notice) -> None:
    lost = [who.worker for who in getattr(notice, "lost", ())]
    tell(notice=type(notice).__name__, reason=notice.reason, lost=lost, time=time.monotonic())


class Script:
    """The commands."""

    def __init__(self, address: str, secret: str, worker: int, incarnation: int, timeout_seconds: float) -> None:
        self.identity = WorkerIdentity(worker, incarnation)
        credentials = Credentials("job", secret.encode())
        self.client = CoordinatorClient(
            address, credentials, self.identity, coordinator_timeout_seconds=timeout_seconds, notice_seconds=1.0
        )
        self.generation = 0

    def join(self) -> dict[str, Any]:
        member = Member(self.identity, socket.gethostname(), "127.0.0.1:1", os.getpid())
        generation = self.client.join(member, on_notice=on_notice)
        return {"generation": generation, "workers": self.client.expected_workers}

    def meet(self, committed: int = -1, state: str = "boundary", call: int = 0, suspects: tuple[int, ...] = ()) -> Any:
        who = tuple(WorkerIdentity(suspect, 1) for suspect in suspects)
        answer = self.client.meet(Report(self.generation, call, committed, RoundState(state), who, "told to"))
        if isinstance(answer, Replay):
            result = None if answer.result is None else answer.result.decode()
            return {"replay": answer.call, "result": result}
        self.generation = answer.group.generation
        return {
            "generation": self.generation,
            "members": [member.worker for member in answer.group.members],
            "newcomers": [identity.worker for identity in answer.group.newcomers],
            "settlement": answer.settlement.value,
            "reason": answer.reason,
            "time": time.monotonic(),
        }

    def compute(self, seconds: float) -> dict[str, Any]:
        """Pure Python that never waits, like tracing."""
        end = time.monotonic() + seconds
        count = 0
        while time.monotonic() < end:
            count += sum(range(1000)) % 7
        return {"newest": self.client.newest_generation}

    def newest(self, at_least: int) -> dict[str, Any]:
        """Wait until this generation was heard of, as a worker would find it in a vote."""
        end = time.monotonic() + 10
        while self.client.newest_generation < at_least and time.monotonic() < end:
            time.sleep(0.01)
        return {"newest": self.client.newest_generation}

    def record(self, call: int, result: str) -> None:
        self.client.record_call(call, result.encode())

    def event(self) -> None:
        self.client.report_event(DataSharded("test", "by hand", 3, (2, 1)))

    def fail(self) -> None:
        self.client.fail("ValueError: no", "Traceback (most recent call last): ...")

    def leave(self) -> None:
        self.client.leave()

    def close(self) -> None:
        self.client.close()


def main() -> None:
    address, secret, worker, incarnation, timeout_seconds = sys.argv[1:]
    script = Script(address, secret, int(worker), int(incarnation), float(timeout_seconds))
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        if name == "exit":
            sys.exit(command["code"])
        try:
            answer = getattr(script, name)(**command)
        except PacelineError as error:
            tell(error=type(error).__name__, message=str(error), code=getattr(error, "exit_code", None))
        else:
            tell(done=name, **(answer or {}))


if __name__ == "__main__":
    main()
