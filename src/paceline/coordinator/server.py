"""The coordinator's server: sockets in, effects out, one event loop. It decides nothing: see `membership.py`.

Next file: `client.py`, a worker's side; `agent_link.py`, an agent's.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType

from paceline.clock import Clock, SystemClock
from paceline.coordinator.inputs import (
    AgentConnected,
    AgentSaid,
    Connection,
    Disconnected,
    Drop,
    Effect,
    End,
    Input,
    Send,
    StopRequested,
    Tell,
    Tick,
    WorkerSaid,
)
from paceline.coordinator.membership import Coordinator
from paceline.coordinator.messages import AgentHello, decode_from_agent, decode_from_worker, decode_hello, encode
from paceline.coordinator.rules import JobRules, Outcome
from paceline.errors import ConfigError, CorruptFrame, ProtocolError
from paceline.observability.events import Event
from paceline.wire.handshake import Credentials
from paceline.wire.streams import Stream, StreamServer, serve_streams

logger = logging.getLogger("paceline.coordinator")

TICK_SECONDS = 0.1
FLUSH_SECONDS = 1.0


class CoordinatorServer:
    """The coordinator of one job, in the running event loop.

    async with CoordinatorServer(JobRules(workers=2), credentials, on_event=sink) as server:
        ...  # start an agent that is told `server.address`
        outcome = await server.outcome()

    Args:
        rules: of this job.
        credentials: of this job; a connection that does not prove them is refused by the wire.
        on_event: called in the event loop with every event: those of the coordinator (`WorkerStarted`,
            `WorkerExited`, `WorkerAwaited`, `WorkerFailed`, `GroupFormed`, `MemberLost`, `JobPaused`) and those that
            workers forward (`RoundCommitted`, `MemberJoined`, ...). `JobStarted` and `JobEnded` are the launcher's.
        host: the interface to listen on.
        port: 0 takes a free one.
    """

    def __init__(
        self,
        rules: JobRules,
        credentials: Credentials,
        *,
        on_event: Callable[[Event], None] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self.rules = rules
        self._credentials = credentials
        self._on_event = on_event
        self._host, self._port = host, port
        self._clock = clock or SystemClock()
        self._numbers = itertools.count(1)
        self._outboxes: dict[Connection, Outbox] = {}
        self._closing = False

    async def __aenter__(self) -> CoordinatorServer:
        """Listen. Raises `ConfigError` when the port is taken."""
        self._coordinator = Coordinator(self.rules, now=self._clock.now())
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        try:
            self._listener: StreamServer = await serve_streams(
                self._serve, host=self._host, port=self._port, credentials=self._credentials, hello=b""
            )
        except OSError as error:
            raise ConfigError(
                f"the coordinator cannot listen on {self._host}, port {self._port}: {error.strerror or error}; "
                "give another port, or 0 for any that is free"
            ) from error
        self._ticks = asyncio.create_task(self._tick_for_ever(), name="paceline-coordinator-ticks")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hand over what was still to be sent (for a second at most), close every connection."""
        self._closing = True
        self._ticks.cancel()
        emptied = [outbox.finish().emptied.wait() for outbox in self._outboxes.values()]
        try:
            await asyncio.wait_for(asyncio.gather(*emptied), FLUSH_SECONDS)
        except asyncio.TimeoutError:
            logger.debug("some peers did not take what was sent to them")
        await self._listener.close()
        await asyncio.gather(self._ticks, return_exceptions=True)
        if not self._outcome.done():
            self._outcome.cancel()

    @property
    def address(self) -> str:
        """ "ip:port", for workers and agents."""
        return self._listener.address

    async def outcome(self) -> Outcome:
        """Wait until the job has ended. Workers and agents have been told to stop when this returns, but may still
        be on their way out."""
        return await asyncio.shield(self._outcome)

    def request_stop(self, *, immediate: bool, reason: str, exit_code: int = 130) -> None:
        """Stop the job: at the next round's end, all together, or now. May be called again to make it immediate.

        `outcome` then has `exit_code`: at once when immediate, otherwise when the last worker is gone.
        """
        self._handle(StopRequested(immediate, reason, exit_code))

    # -------------------------------------------------------------------------------------------------- connections

    async def _serve(self, stream: Stream) -> None:
        """One connection, from its hello to its end."""
        hello = decode_hello(stream.peer_hello)
        connection = next(self._numbers)
        outbox = self._outboxes[connection] = Outbox(stream)
        sending = asyncio.create_task(outbox.run(), name=f"paceline-coordinator-send-{connection}")
        reason = "its connection closed"
        try:
            if isinstance(hello, AgentHello):
                self._handle(AgentConnected(connection, hello.host))
            while True:
                payload = await stream.receive()
                if isinstance(hello, AgentHello):
                    self._handle(AgentSaid(connection, decode_from_agent(payload)))
                else:
                    self._hear_worker(WorkerSaid(connection, hello.identity, decode_from_worker(payload)))
        except ConnectionError:
            pass  # The ordinary end; who is lost by it is decided below.
        except (ProtocolError, CorruptFrame) as error:
            logger.warning("closed the connection of %s: %s", hello, error)
            reason = str(error)
        finally:
            del self._outboxes[connection]
            if not self._closing:
                self._handle(Disconnected(connection, reason))
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _hear_worker(self, said: WorkerSaid) -> None:
        try:
            self._handle(said)
        except ProtocolError as error:
            logger.warning("dropped a message of worker %d: %s", said.identity.worker, error)

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(TICK_SECONDS, self.rules.heartbeat_seconds / 2))
            self._handle(Tick())

    # ------------------------------------------------------------------------------------------------------- effects

    def _handle(self, happened: Input) -> None:
        try:
            effects = self._coordinator.handle(happened, self._clock.now())
        except ProtocolError:
            raise
        except Exception as error:  # Our own bug: the job must not go on half-decided, nor hang.
            if not self._outcome.done():
                self._outcome.set_exception(error)
            raise
        encoded: dict[int, bytes] = {}  # one message to all members is the same object, and is encoded once
        for effect in effects:
            self._act(effect, encoded)

    def _act(self, effect: Effect, encoded: dict[int, bytes]) -> None:
        match effect:
            case Send(connection, message):
                if connection in self._outboxes:
                    if id(message) not in encoded:
                        encoded[id(message)] = encode(message)
                    self._outboxes[connection].put(encoded[id(message)])
            case Drop(connection):
                if connection in self._outboxes:
                    self._outboxes[connection].finish()
            case Tell(event):
                self._tell(event)
            case End(outcome):
                if not self._outcome.done():
                    self._outcome.set_result(outcome)

    def _tell(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # A full disk under the event file is no reason to lose the job.
            logger.exception("an event could not be told: %s", event)


class Outbox:
    """What is still to be sent on one connection. A slow or frozen peer holds up nobody but itself."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._payloads: deque[bytes] = deque()
        self._finished = False
        self._changed = asyncio.Event()
        self.emptied = asyncio.Event()

    def put(self, payload: bytes) -> None:
        if not self._finished:
            self._payloads.append(payload)
            self._changed.set()

    def finish(self) -> Outbox:
        """Close the connection after what was put."""
        self._finished = True
        self._changed.set()
        return self

    async def run(self) -> None:
        try:
            while self._payloads or not self._finished:
                while self._payloads:
                    await self._stream.send(self._payloads.popleft())
                if not self._finished:
                    self._changed.clear()
                    await self._changed.wait()
        except ConnectionError as error:
            logger.debug("could not send: %s", error)
        finally:
            await self._stream.close()
            self.emptied.set()
