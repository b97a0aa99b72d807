"""The coordinator's server: sockets in, effects out, one event loop. It decides nothing: see `membership.py`."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from paceline.coordinator.rules import JobRules, Outcome
from paceline.observability.events import Event
from paceline.wire.handshake import Credentials


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
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> CoordinatorServer:
        """Listen. Raises `ConfigError` when the port is taken."""
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hand over what was still to be sent (for a second at most), close every connection."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """ "ip:port", for workers and agents."""
        raise NotImplementedError

    async def outcome(self) -> Outcome:
        """Wait until the job has ended. Workers and agents have been told to stop when this returns, but may still
        be on their way out."""
        raise NotImplementedError

    def request_stop(self, *, immediate: bool, reason: str, exit_code: int = 130) -> None:
        """Stop the job: at the next round's end, all together, or now. May be called again to make it immediate.

        `outcome` then has `exit_code`: at once when immediate, otherwise when the last worker is gone.
        """
        raise NotImplementedError
