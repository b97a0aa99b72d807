"""An agent's connection to the coordinator: it tells of its workers' processes and takes orders. asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator

from paceline.coordinator.messages import Order
from paceline.wire.handshake import Credentials


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

    @classmethod
    async def connect(
        cls, address: str, credentials: Credentials, *, host: str, timeout_seconds: float = 30.0
    ) -> AgentLink:
        """Raises `CoordinatorLost` when nobody answers in time, `AuthenticationError` when the secret is wrong."""
        raise NotImplementedError

    async def report_started(self, worker: int, incarnation: int, pid: int) -> None:
        """A process for this place runs. `incarnation` counts from 1. Raises `CoordinatorLost`, like all reports."""
        raise NotImplementedError

    async def report_exited(self, worker: int, incarnation: int, exit_code: int | None, signal: str | None) -> None:
        """That process ended, with an exit code or by a signal ("SIGKILL")."""
        raise NotImplementedError

    async def report_gave_up(self, worker: int, reason: str) -> None:
        """This place will not be filled again: the restart policy said so. The job goes on without it while it has
        `min_workers`."""
        raise NotImplementedError

    def orders(self) -> AsyncIterator[Order]:
        """What the coordinator wants, as it comes. Ends after `Dismiss` or an immediate `StopWorkers`; raises
        `CoordinatorLost` when the connection ends before."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
