"""An agent's connection to the coordinator: it tells of its workers' processes and takes orders. asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from paceline.coordinator.messages import (
    AgentHello,
    Dismiss,
    FromAgent,
    GaveUp,
    Order,
    ProcessExited,
    ProcessStarted,
    StopWorkers,
    decode_order,
    encode,
)
from paceline.errors import CoordinatorLost
from paceline.types import WorkerIdentity
from paceline.wire.handshake import Credentials
from paceline.wire.streams import Stream, dial_stream

RETRY_SECONDS = 0.1


class AgentLink:
    """One agent's connection.

    link = await AgentLink.connect(server.address, credentials, host=socket.gethostname())
    await link.report_started(0, 1, process.pid)
    async for order in link.orders():
        match order:
            case StopWorkers(): ...
            case Dismiss(): ...
            case KillWorker(): ...
    """

    def __init__(self, stream: Stream, address: str) -> None:
        self._stream = stream
        self._address = address

    @classmethod
    async def connect(
        cls, address: str, credentials: Credentials, *, host: str, timeout_seconds: float = 30.0
    ) -> AgentLink:
        """Raises `CoordinatorLost` when nobody answers in time, `AuthenticationError` when the secret is wrong."""
        end = asyncio.get_running_loop().time() + timeout_seconds
        hello = encode(AgentHello(host))
        while True:
            remaining = end - asyncio.get_running_loop().time()
            try:
                return cls(await dial_stream(address, credentials, hello, timeout_seconds=remaining), address)
            except (ConnectionError, TimeoutError) as error:
                if remaining <= RETRY_SECONDS:
                    raise CoordinatorLost(f"the coordinator at {address} cannot be reached: {error}") from error
                await asyncio.sleep(RETRY_SECONDS)  # Nothing tells when it listens.

    async def report_started(self, worker: int, incarnation: int, pid: int) -> None:
        """A process for this place runs. `incarnation` counts from 1. Raises `CoordinatorLost`, like all reports."""
        await self._report(ProcessStarted(WorkerIdentity(worker, incarnation), pid))

    async def report_exited(self, worker: int, incarnation: int, exit_code: int | None, signal: str | None) -> None:
        """That process ended, with an exit code or by a signal ("SIGKILL")."""
        await self._report(ProcessExited(WorkerIdentity(worker, incarnation), exit_code, signal))

    async def report_gave_up(self, worker: int, reason: str) -> None:
        """This place will not be filled again: the restart policy said so. The job goes on without it while it has
        `min_workers`."""
        await self._report(GaveUp(worker, reason))

    async def _report(self, message: FromAgent) -> None:
        try:
            await self._stream.send(encode(message))
        except ConnectionError as error:
            raise CoordinatorLost(f"the coordinator at {self._address} cannot be reached: {error}") from error

    async def orders(self) -> AsyncIterator[Order]:
        """What the coordinator wants, as it comes. Ends after `Dismiss` or an immediate `StopWorkers`; raises
        `CoordinatorLost` when the connection ends before."""
        while True:
            try:
                order = decode_order(await self._stream.receive())
            except ConnectionError as error:
                raise CoordinatorLost(f"the coordinator at {self._address} cannot be reached: {error}") from error
            yield order
            if isinstance(order, Dismiss) or (isinstance(order, StopWorkers) and order.immediate):
                return

    async def close(self) -> None:
        await self._stream.close()
