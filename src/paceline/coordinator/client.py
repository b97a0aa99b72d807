"""A worker's side of the coordinator: blocking calls for the script's thread, one thread that listens and beats.

The thread answers for the worker while the script computes, so a long step does not look like a death. It sends the
heartbeats, takes in notices as they come, and wakes whoever waits. Next file: `solo.py`, the same for one process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from paceline.clock import Clock, Deadline, SystemClock
from paceline.coordinator.messages import (
    Alive,
    Announced,
    AtEnd,
    Awaiting,
    Fail,
    FencedOff,
    FromWorker,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Meet,
    PushedStop,
    PushedVerdict,
    Received,
    RecordCall,
    Refused,
    Replayed,
    Ruled,
    StartTimedOut,
    ToWorker,
    WorkerHello,
    decode_to_worker,
    encode,
    forward,
)
from paceline.coordinator.protocols import Notice, Replay, Report, Ruling, Stop
from paceline.errors import CoordinatorLost, CorruptFrame, Fenced, JobStopped, ProtocolError, StartTimeout
from paceline.types import Member, WorkerIdentity
from paceline.wire.channels import Channel, dial, shut_down
from paceline.wire.handshake import Credentials

logger = logging.getLogger("paceline.coordinator")

RETRY_SECONDS = 0.1

Answer = TypeVar("Answer", bound=ToWorker)


class CoordinatorClient:
    """Implements `protocols.Membership` over a connection to the coordinator.

    Args:
        address: "host:port" of the coordinator.
        credentials: of the job.
        identity: of this process.
        coordinator_timeout_seconds: how long the coordinator may be unreachable or silent before a call that needs
            it raises `CoordinatorLost`. `meet` may wait much longer for other workers: as long as the coordinator is
            heard, which ends every wait by its own rules.
        notice_seconds: how often a wait is logged.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        identity: WorkerIdentity,
        *,
        coordinator_timeout_seconds: float = 15.0,
        notice_seconds: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._identity = identity
        self._timeout_seconds = coordinator_timeout_seconds
        self._notice_seconds = notice_seconds
        self._clock = clock or SystemClock()
        self._on_notice: Callable[[Notice], None] | None = None
        self._channel: Channel | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._replays: dict[int, Replay] = {}  # of calls that come next
        # What the thread has heard; guarded by the condition.
        self._condition = threading.Condition()
        self._answer: ToWorker | None = None
        self._joined: Joined | None = None
        self._newest_generation = 0
        self._awaiting = ""
        self._stop: Stop | None = None
        self._fenced: str | None = None
        self._lost: str | None = None
        self._lost_at = 0.0
        self._error: Exception | None = None

    @property
    def identity(self) -> WorkerIdentity:
        return self._identity

    @property
    def expected_workers(self) -> int:
        assert self._joined is not None, "known after join"
        return self._joined.expected_workers

    @property
    def newest_generation(self) -> int:
        return self._newest_generation

    # --------------------------------------------------------------------------------------- the script's thread

    def join(self, member: Member, *, on_notice: Callable[[Notice], None]) -> int:
        self._on_notice = on_notice
        joined = self._ask(Join(member), Joined)
        return joined.generation

    def meet(self, report: Report) -> Ruling | Replay:
        if report.call in self._replays and self._stop is None:
            return self._replays.pop(report.call)
        self._ask_only(Meet(report))
        answer = self._await((Ruled, Replayed, StartTimedOut), deadline=None)
        match answer:
            case Ruled(ruling):
                return ruling
            case Replayed(replays):
                self._replays = {replay.call: replay for replay in replays}
                return self._replays.pop(report.call)
            case StartTimedOut(message):
                raise StartTimeout(message)
        raise AssertionError(f"not an answer to meet: {answer}")

    def record_call(self, call: int, result: bytes) -> None:
        self._send(RecordCall(call, result))

    def report_end(self) -> None:
        self._send(AtEnd())

    def report_event(self, event: object) -> None:
        self._send(forward(event))

    def fail(self, summary: str, traceback: str) -> None:
        self._ask(Fail(summary, traceback), Received, even_if_stopped=True)

    def leave(self) -> None:
        self._ask(Leave(), Received, even_if_stopped=True)
        self.close()

    def close(self) -> None:
        self._closing = True
        if self._channel is not None:
            shut_down(self._channel.socket)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._channel is not None:
            self._channel.close()

    def _ask(self, message: FromWorker, kind: type[Answer], *, even_if_stopped: bool = False) -> Answer:
        """Send, and wait for the one answer."""
        self._ask_only(message)
        deadline = Deadline(self._timeout_seconds, self._clock)
        answer = self._await((kind,), deadline=deadline, even_if_stopped=even_if_stopped)
        assert isinstance(answer, kind)
        return answer

    def _ask_only(self, message: FromWorker) -> None:
        self._connect()
        with self._condition:
            self._answer, self._awaiting = None, ""
        self._send(message)

    def _await(
        self, kinds: tuple[type[Any], ...], *, deadline: Deadline | None, even_if_stopped: bool = False
    ) -> ToWorker:
        began = noticed = self._clock.now()
        with self._condition:
            while True:
                answer = self._answer
                if answer is not None and isinstance(answer, kinds):
                    self._answer = None
                    return answer
                self._raise_if_hopeless(deadline, even_if_stopped)
                now = self._clock.now()
                if now - noticed >= self._notice_seconds:
                    noticed = now
                    waits_for = self._awaiting or "waiting for the coordinator's answer"
                    logger.info("%s; %.0f s so far", waits_for, now - began)
                self._condition.wait(self._next_look(deadline, noticed))

    def _next_look(self, deadline: Deadline | None, noticed: float) -> float:
        """Seconds until something must be looked at even if nothing is heard."""
        now = self._clock.now()
        looks = [noticed + self._notice_seconds - now]
        if deadline is not None:
            looks.append(deadline.remaining)
        if self._lost is not None:
            looks.append(self._lost_at + self._timeout_seconds - now)
        return max(0.001, min(looks))

    def _raise_if_hopeless(self, deadline: Deadline | None, even_if_stopped: bool) -> None:
        if self._error is not None:
            raise self._error
        if self._fenced is not None:
            raise Fenced(f"worker {self._identity.worker} was declared lost: {self._fenced}")
        if isinstance(self._answer, Refused):
            raise ProtocolError(f"the coordinator refused worker {self._identity.worker}: {self._answer.reason}")
        if self._stop is not None and not even_if_stopped:
            raise JobStopped(self._stop.reason, self._stop.exit_code)
        if self._lost is not None and self._clock.now() - self._lost_at >= self._timeout_seconds:
            raise CoordinatorLost(f"the coordinator at {self._address} cannot be reached: {self._lost}")
        if deadline is not None and deadline.expired:
            raise CoordinatorLost(f"the coordinator at {self._address} did not answer within {deadline.seconds:.3g} s")

    def _send(self, message: FromWorker) -> None:
        """Send if the coordinator can be reached. Groups go on training while it cannot: whoever needs an answer
        notices in its wait, and what needs none is lost with it."""
        channel = self._channel
        if channel is None or self._lost is not None:
            return
        try:
            channel.send(encode(message))
        except ConnectionError as error:
            self._note_lost(str(error))

    def _connect(self) -> None:
        """Dial once, with patience: the coordinator may still be on its way up."""
        if self._channel is not None:
            return
        deadline = Deadline(self._timeout_seconds, self._clock)
        hello = encode(WorkerHello(self._identity))
        while True:
            try:
                self._channel = dial(self._address, self._credentials, hello, deadline=deadline)
                break
            except (ConnectionError, TimeoutError) as error:
                if deadline.remaining <= RETRY_SECONDS:
                    raise CoordinatorLost(f"the coordinator at {self._address} cannot be reached: {error}") from error
                time.sleep(RETRY_SECONDS)  # Nothing tells when it listens.
        name = f"paceline-coordinator-{self._identity.worker}"
        self._thread = threading.Thread(target=self._listen, args=(self._channel,), name=name, daemon=True)
        self._thread.start()

    # --------------------------------------------------------------------------------------- the client's own thread

    def _listen(self, channel: Channel) -> None:
        heard = beaten = self._clock.now()
        while not self._closing:
            joined = self._joined
            pause = joined.heartbeat_seconds if joined is not None else 1.0
            try:
                payload = channel.receive(max(0.0, beaten + pause - self._clock.now()))
            except TimeoutError:
                payload = None
            except (ConnectionError, CorruptFrame, ProtocolError, ValueError) as error:
                # ValueError: another thread closed the channel under the wait.
                self._note_lost(str(error))
                return
            now = self._clock.now()
            if payload is not None:
                heard = now
                if not self._take(payload):
                    return
            elif joined is not None and now - heard > self._timeout_seconds:
                self._note_lost(f"silent for {now - heard:.1f} s", at=heard)
                return
            if now - beaten >= pause:
                beaten = now
                if joined is not None:
                    self._send(Heartbeat())

    def _take(self, payload: bytes) -> bool:
        """Take in one message. Returns whether to go on listening."""
        try:
            message = decode_to_worker(payload)
            self._note(message)
            if self._on_notice is not None:
                if isinstance(message, PushedVerdict):
                    self._on_notice(message.verdict)
                elif isinstance(message, PushedStop):
                    self._on_notice(message.stop)
        except Exception as error:  # Raised to the script at its next wait: this thread has nobody to raise to.
            with self._condition:
                self._error = error
                self._condition.notify_all()
            return False
        return True

    def _note(self, message: ToWorker) -> None:
        with self._condition:
            match message:
                case Joined(generation):
                    self._joined = message
                    self._newest_generation = max(self._newest_generation, generation)
                    self._answer = message
                case Ruled(ruling):
                    self._newest_generation = max(self._newest_generation, ruling.group.generation)
                    self._answer = message
                case Announced(generation):
                    self._newest_generation = max(self._newest_generation, generation)
                case PushedVerdict(verdict):
                    self._newest_generation = max(self._newest_generation, verdict.generation + 1)
                case Awaiting(text):
                    self._awaiting = text
                case FencedOff(reason):
                    self._fenced = reason
                case PushedStop(stop):
                    self._stop = stop if stop.immediate else self._stop
                case Replayed() | StartTimedOut() | Refused() | Received():
                    self._answer = message
                case Alive():
                    return
            self._condition.notify_all()

    def _note_lost(self, reason: str, *, at: float | None = None) -> None:
        """The connection is of no further use. Here a reconnection would begin."""
        with self._condition:
            if self._lost is None and not self._closing:
                self._lost, self._lost_at = reason, self._clock.now() if at is None else at
                logger.warning("lost the coordinator at %s: %s", self._address, reason)
                self._condition.notify_all()
