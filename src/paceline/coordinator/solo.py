"""A group of one without a coordinator: what a script gets when it was started without the launcher."""

from __future__ import annotations

from collections.abc import Callable

from paceline.coordinator.ballot import settle
from paceline.coordinator.protocols import Notice, Replay, Report, Ruling
from paceline.types import Group, Member, WorkerIdentity


class SoloMembership:
    """Implements `protocols.Membership` for one process that is alone. Nobody is lost, nobody joins, nothing waits."""

    def __init__(self) -> None:
        self._member: Member | None = None
        self._generation = 0

    @property
    def identity(self) -> WorkerIdentity:
        return WorkerIdentity(0, 1)

    @property
    def expected_workers(self) -> int:
        return 1

    @property
    def newest_generation(self) -> int:
        return self._generation

    def join(self, member: Member, *, on_notice: Callable[[Notice], None]) -> int:
        self._member = member
        return 0

    def meet(self, report: Report) -> Ruling | Replay:
        assert self._member is not None, "join comes first"
        self._generation += 1
        group = Group(self._generation, (self._member,))
        ballot = settle({self.identity: report}, highest=report.committed_rounds)
        return Ruling(group, ballot.settlements[self.identity], ballot.reason)

    def record_call(self, call: int, result: bytes) -> None:
        """Nobody comes later."""

    def report_end(self) -> None:
        """Nobody waits."""

    def report_event(self, event: object) -> None:
        """There is no job beyond this process, whose own subscribers have heard the event already."""

    def fail(self, summary: str, traceback: str) -> None:
        """Nobody else is to be told; Python shows the traceback."""

    def leave(self) -> None: ...

    def close(self) -> None: ...
