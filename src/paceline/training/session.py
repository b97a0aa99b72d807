"""A worker's place in its job: its group, its vote, and the number of rounds that it has committed.

The session decides nothing about membership: it carries reports to the coordinator and rulings back. Read `round.py`
first. Next file: `calls.py`, how the script's calls are numbered and agreed; then `recovery.py`.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Callable

from paceline.communication.protocols import Communicator
from paceline.coordinator.protocols import (
    Membership,
    Notice,
    Replay,
    Report,
    RoundState,
    Ruling,
    Settlement,
    Stop,
    Verdict,
)
from paceline.errors import CommunicationError, JobStopped, PeerLost, RanksDisagree
from paceline.observability.events import RoundCommitted, RoundDiscarded, emit
from paceline.strategies.protocols import Ballot
from paceline.training.vote import VoteRecord, decide
from paceline.types import Group, Member, WorkerIdentity

logger = logging.getLogger("paceline.training")

NO_STATE = -1
MAX_DIGEST_MISMATCHES = 3
STOPPED_EXIT_CODE = 130


class Outcome(enum.Enum):
    """How a round ended on this member, as on all."""

    COMMITTED = "committed"
    DISCARDED = "discarded"  # nothing has changed; it is run again
    HALTING = "halting"  # nothing has changed; a member wants the call to end here, which is to be agreed


class Session:
    """One worker's membership of its job, used by one thread.

    Args:
        membership: this worker's side of the coordinator.
        member: how peers reach this worker.
        connect: gives this worker its means of talk in a group that it is a member of; does not wait.
    """

    def __init__(
        self,
        membership: Membership,
        member: Member,
        *,
        connect: Callable[[Group], Communicator],
    ) -> None:
        self.membership = membership
        self._member = member
        self._connect_to = connect
        self.round = NO_STATE
        self.call = 0
        self.call_agreed = False  # every member is inside the call
        self.closed = 0  # greater than 0 where a newcomer could not be taken in
        self.admit: Callable[[Group, Communicator], None] | None = None  # set by `calls.py`: hands over the state
        self._group: Group | None = None
        self._communicator: Communicator | None = None
        self._lock = threading.Lock()  # guards the communicator against the notices' thread
        self._over = 0  # newest generation that a verdict has ended
        self._stop_request: Stop | None = None  # told to this worker; goes into its next vote
        self._stop: Stop | None = None  # agreed by all, or immediate
        self._meet_next = False
        self._mismatches = 0
        self.late = membership.join(member, on_notice=self._notice) > 0

    # ----------------------------------------------------------------------------------------------- who and where

    @property
    def identity(self) -> WorkerIdentity:
        return self._member.identity

    @property
    def group(self) -> Group | None:
        """The current group; None before the first, and for a restarted worker that was not admitted yet."""
        return self._group

    @property
    def rank(self) -> int:
        """Place in the group. A restarted worker counts as the last one until it is admitted."""
        return self._group.rank_of(self.identity) if self._group else self.membership.expected_workers - 1

    @property
    def size(self) -> int:
        return self._group.size if self._group else self.membership.expected_workers

    @property
    def local_rank(self) -> int:
        return self._group.local_rank_of(self.identity) if self._group else self.rank

    @property
    def holds_state(self) -> bool:
        return self.round != NO_STATE

    # ------------------------------------------------------------------------------------------------------ a round

    def form_group(self) -> tuple[Group, Communicator]:
        """The group for the next round, connected, with every newcomer's state in place. Meets the coordinator when
        the membership has changed or is about to."""
        while True:
            self.raise_if_stopped()
            if self._group is None or (self._meet_next and not self.closed):
                self._meet(RoundState.BOUNDARY, "the membership changes")
            communicator = self._communicator or self._connect()
            assert self._group is not None
            if not self._group.newcomers:
                return self._group, communicator
            assert self.admit is not None, "a group with newcomers forms only inside a call"
            try:
                self.admit(self._group, communicator)
                self._group = Group(self._group.generation, self._group.members)
            except CommunicationError as lost:
                if not self.holds_state:
                    self._disconnect()
                    raise  # back to `meet_as_newcomer`: the call may have ended meanwhile
                self._meet(RoundState.BOUNDARY, str(lost), lost)

    def vote(self, ballot: Ballot, *, work_seconds: float, call: str) -> Outcome:
        """Vote on the open round. Raises `RanksDisagree` when members read different data, or hold different
        proposals again and again."""
        assert self._group is not None
        assert self._communicator is not None
        record = VoteRecord(
            generation=self._group.generation,
            round=self.round,
            digest=ballot.digest,
            fingerprint=ballot.fingerprint,
            newest_generation=self._newest_generation(),
            work_seconds=work_seconds,
            stop=self._stop_request is not None,
            halt=ballot.halt,
        )
        try:
            payloads = self._communicator.all_gather_bytes(record.encode())
        except CommunicationError as lost:
            ruling = self._meet(RoundState.VOTED, str(lost), lost)
            if ruling.settlement is Settlement.COMMIT:
                return Outcome.COMMITTED
            self._tell_discarded(call, ruling.reason)
            return Outcome.DISCARDED
        verdict = decide([VoteRecord.decode(payload) for payload in payloads])
        self._meet_next = self._meet_next or verdict.meet
        if verdict.stop:
            asked = Stop("another worker was asked to stop", STOPPED_EXIT_CODE, immediate=False)
            self._stop = self._stop_request or asked
        if verdict.outcome == "commit":
            self._mismatches = 0
            return Outcome.COMMITTED
        if verdict.outcome == "halt":
            # When all are to meet first, a newcomer may come in, who has not heard of it: then all vote again.
            return Outcome.DISCARDED if verdict.meet else Outcome.HALTING
        self._tell_discarded(call, verdict.outcome)
        self._complain(verdict.outcome, verdict.suspects)
        return Outcome.DISCARDED

    def note_commit(self, event: RoundCommitted) -> None:
        """Count the round. Rank 0 tells. Raises `JobStopped` when a stop was agreed in this round's vote."""
        self.round += 1
        emit(event)
        if self.rank == 0:
            self.membership.report_event(event)
        self.raise_if_stopped()

    def let_all_know(self) -> None:
        """Wait for the others, before raising what all members raise alike. Otherwise one of them may still be
        receiving what this one has sent last when this one's connections close, and take that for a loss."""
        if self._communicator is not None:
            with contextlib.suppress(CommunicationError):  # whoever is lost now need not be told
                self._communicator.barrier()

    def discard(self, lost: CommunicationError, call: str) -> None:
        """Settle a round whose work or talk was cut: this member has not voted, so nobody can have committed."""
        ruling = self._meet(RoundState.WORKING, str(lost), lost)
        assert ruling.settlement is not Settlement.COMMIT, "a round that this member did not vote for was committed"
        self._tell_discarded(call, ruling.reason)

    # ----------------------------------------------------------------------------------------------- the coordinator

    def start(self) -> None:
        """Wait for the first group. A restarted worker does not wait here: its calls find out where the job is."""
        if not self.late:
            self._meet(RoundState.BOUNDARY, "started")

    def meet_as_newcomer(self) -> Replay | None:
        """For a worker that holds no state: wait until the current call has ended (`Replay`), or until a group has
        this worker in it (None; `form_group` then brings the state)."""
        answer = self.membership.meet(self._report(RoundState.BOUNDARY, (), "restarted"))
        if isinstance(answer, Replay):
            return answer
        self._enter(answer)
        return None

    def raise_if_stopped(self) -> None:
        if self._stop is not None:
            raise JobStopped(self._stop.reason, self._stop.exit_code)

    def close(self) -> None:
        """Drop the connections; the coordinator notices, unless `membership.leave` was called first."""
        with self._lock:
            communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.close()
        self.membership.close()

    def _meet(self, state: RoundState, reason: str, lost: CommunicationError | None = None) -> Ruling:
        self.raise_if_stopped()
        suspects: tuple[WorkerIdentity, ...] = ()
        if isinstance(lost, PeerLost) and self._group is not None:
            suspects = tuple(self._group.members[rank].identity for rank in lost.peers)
        self._disconnect()  # so that peers who still wait for this member notice at once
        answer = self.membership.meet(self._report(state, suspects, reason))
        assert isinstance(answer, Ruling), "only a worker without state replays"
        self._enter(answer)
        return answer

    def _newest_generation(self) -> int:
        """What this member has heard of. It does not go to meet a newcomer where none can be taken in."""
        assert self._group is not None
        return self._group.generation if self.closed else self.membership.newest_generation

    def _report(self, state: RoundState, suspects: tuple[WorkerIdentity, ...], reason: str) -> Report:
        generation = self._group.generation if self._group else 0
        return Report(
            generation,
            self.call,
            self.round,
            state,
            suspects,
            reason,
            call_agreed=self.call_agreed,
            admits=self.closed == 0,
        )

    def _enter(self, ruling: Ruling) -> None:
        self._group = ruling.group
        self._meet_next = False
        if self.round == NO_STATE and not ruling.group.newcomers:
            self.round = 0  # nobody has state: what this worker built is as good as anyone's (rank 0's is taken)

    def _connect(self) -> Communicator:
        assert self._group is not None
        communicator = self._connect_to(self._group)
        with self._lock:
            self._communicator = communicator
            over = self._over >= self._group.generation
        if over:
            communicator.abort("the coordinator ended this generation")
        return communicator

    def _disconnect(self) -> None:
        with self._lock:
            communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.close()

    def _notice(self, notice: Notice) -> None:
        """Called from the membership's thread."""
        with self._lock:
            communicator = self._communicator
            if isinstance(notice, Verdict):
                self._over = max(self._over, notice.generation)
                if communicator is None or communicator.generation > notice.generation:
                    return
            elif not notice.immediate:
                self._stop_request = notice
                return
            else:
                self._stop = notice
        if communicator is not None:
            communicator.abort(notice.reason)

    # ------------------------------------------------------------------------------------------------------ messages

    def _tell_discarded(self, call: str, reason: str) -> None:
        assert self._group is not None
        event = RoundDiscarded(self.round, call, self._group.generation, reason)
        emit(event)
        if self.rank == 0:
            self.membership.report_event(event)

    def _complain(self, outcome: str, suspects: tuple[int, ...]) -> None:
        ranks = ", ".join(map(str, suspects))
        if outcome == "data differ":
            self.let_all_know()
            raise RanksDisagree(
                f"round {self.round}: rank {ranks} reads other samples than the rest. Every worker must get the same "
                "stream: give shuffles a seed, do not shard or skip by rank yourself, and read no source whose order "
                "changes from one reader to the next"
            )
        self._mismatches += 1
        logger.warning("round %d: rank %s holds another result than the rest; running it again", self.round, ranks)
        if self._mismatches >= MAX_DIGEST_MISMATCHES:
            self.let_all_know()
            raise RanksDisagree(
                f"round {self.round}: rank {ranks} held another result than the rest {self._mismatches} times in a "
                "row; its memory or its host is not sound"
            )
