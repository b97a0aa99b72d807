"""The script's calls (`fit`, `evaluate`, `allreduce` ...), numbered in the order in which every rank makes them.

A call begins with an agreement: the ranks compare what they are about to do, and a difference is told to all of them in
one table instead of hanging. A worker that was restarted runs the script from its top: calls that have ended without
it return their recorded results, and the call that is under way takes it in, with the others' state.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.communication.protocols import Communicator
from paceline.coordinator.protocols import Replay
from paceline.errors import CommunicationError, PacelineError, RanksDisagree, UserError
from paceline.observability.events import MemberJoined, emit
from paceline.strategies.protocols import Ballot
from paceline.training.codec import decode, encode
from paceline.training.parts import Digests, Parts, differ, pack, unpack
from paceline.training.recovery import Recoverable, State, transfer
from paceline.training.round import run
from paceline.training.session import Session
from paceline.types import Group
from paceline.wire.frames import checksum

logger = logging.getLogger("paceline.training")

Description = Mapping[str, str]
Stage = Literal["agreeing", "equalising", "running"]
RESULT = "result"
ERROR = "error"
PROGRESS = -1  # number of a call's progress among the parts of a state


@dataclass
class OpenedCall:
    """A call under way on this worker.

    Attributes:
        replayed: the call has ended without this worker; `result` is what it returned.
        resumed: the call is under way; the progress that was handed to `call` holds where it stands.
        takes_over: it was the script's last call, and this worker is to go on from there in a lost rank 0's place.
        result: what the call returns, for workers that come later (see `codec.py`); set by the caller.
    """

    replayed: bool = False
    resumed: bool = False
    takes_over: bool = False
    result: Any = None


class Calls:
    """The calls of one session, and the state that newcomers take over.

    `parts` are the distributed models; a call under way adds its own progress.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.parts = Parts()
        self._told: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._progress: Recoverable | None = None
        self._stage: Stage = "agreeing"
        self._depth = 0
        self._catching_up = False
        self._taking_over = False
        session.admit = self._admit

    @contextlib.contextmanager
    def call(
        self, kind: str, description: Description, *, progress: Recoverable | None = None, admits: bool = True
    ) -> Iterator[OpenedCall]:
        """The next call, from its agreement to its end.

        A call that a callback makes inside another one is part of that one: it is agreed, but has no number of its
        own. Raises `RanksDisagree` on every rank when the descriptions differ.

        Args:
            progress: tells newcomers where the call stands.
            admits: newcomers may be taken in; otherwise they wait, and get the result.
        """
        nested = self._depth > 0
        self._depth += 1
        try:
            if nested:
                with self._inside(kind):
                    self._agree(kind, description)
                    yield OpenedCall()
                return
            with self._closed() if not admits else contextlib.nullcontext():
                opened = self._open(kind, description, progress)
                self._stage, self.session.call_agreed = "running", True
                try:
                    yield opened
                except PacelineError:
                    raise
                except Exception as error:
                    self._end(opened, ERROR, f"{type(error).__name__}: {error}")
                    raise
            self._end(opened, RESULT, opened.result)
        finally:
            self._depth -= 1

    def come_to_end(self) -> None:
        """The script is done: wait until every rank has come here."""
        self.session.membership.report_end()
        with self.call("end of the script", {}):
            pass

    def take_up(self) -> contextlib.AbstractContextManager[None]:
        """A block in which a newcomer brings its own objects to where the others' are; callbacks that call into the
        group there are told so, since the others have done it long ago."""
        return self._flagged("_catching_up")

    def _open(self, kind: str, description: Description, progress: Recoverable | None) -> OpenedCall:
        self._progress, self._stage = progress, "agreeing"
        if self.session.late and not self.session.holds_state:
            opened = self._catch_up(kind)
            if opened.replayed or opened.resumed:
                return opened
        self._agree(kind, description)
        return OpenedCall()

    def _agree(self, kind: str, description: Description) -> None:
        stage = self._stage
        if stage != "equalising":  # else a newcomer, which came after the others had agreed
            agreement = Agreement(
                kind, {"call": f"{kind}, number {self.session.call}", **description}, self.parts.digests()
            )
            run(self.session, agreement)
            if rows := agreement.differences():
                self.session.let_all_know()
                raise RanksDisagree("the ranks do not agree on what to do:\n" + render_table(rows))
            if not agreement.states_differ:
                self._note_agreed()
                return
        self._stage = "equalising"
        run(self.session, TakeStateOfRankZero(self))
        self._stage = stage
        self._note_agreed()

    def tell_agreements_to(self, method: Callable[[], None]) -> None:
        """Call this method, as long as its object lives, whenever all have come to the same place."""
        self._told.append(weakref.WeakMethod(method))

    def _note_agreed(self) -> None:
        self._told = [reference for reference in self._told if reference() is not None]
        for reference in self._told:
            if (told := reference()) is not None:
                told()

    def _end(self, opened: OpenedCall, kind: str, result: Any) -> None:
        """Count the call, and leave its result for workers that come later."""
        if not opened.replayed:
            self.session.membership.record_call(self.session.call, encode([kind, result]))
        self.session.call += 1
        self.session.call_agreed = False
        self._progress, self._stage = None, "agreeing"
        if opened.takes_over:
            self._take_over()

    @contextlib.contextmanager
    def _inside(self, kind: str) -> Iterator[None]:
        if self._catching_up:
            raise UserError(
                f"a callback calls {kind} where training begins, which a restarted worker cannot repeat alone: make "
                "the call in a later hook, or before fit"
            )
        with self._closed():
            yield

    @contextlib.contextmanager
    def _closed(self) -> Iterator[None]:
        self.session.closed += 1
        try:
            yield
        finally:
            self.session.closed -= 1

    @contextlib.contextmanager
    def _flagged(self, name: str) -> Iterator[None]:
        setattr(self, name, True)
        try:
            yield
        finally:
            setattr(self, name, False)

    # ------------------------------------------------------------------------------------------------------ newcomers

    def _catch_up(self, kind: str) -> OpenedCall:
        while True:
            answer = self.session.meet_as_newcomer()
            if isinstance(answer, Replay):
                number = self.session.call
                if answer.result is None:
                    raise UserError(
                        f"call {number} ({kind}) ended while this worker was away, and its result was too large to be "
                        "kept; this worker cannot take part again"
                    )
                outcome, result = decode(answer.result)
                if outcome == ERROR:
                    self.session.call += 1
                    raise UserError(f"call {number} ({kind}) had failed on the other workers: {result}")
                return OpenedCall(replayed=True, takes_over=answer.takes_over, result=result)
            if self._take_state():
                return OpenedCall(resumed=self._stage == "running")

    def _take_over(self) -> None:
        """The others wait at the end of the script: take their state, and rank 0, before going on alone."""
        with self._flagged("_taking_over"):
            while not isinstance(self.session.meet_as_newcomer(), Replay):  # else another one was quicker
                if self._take_state():
                    return

    def _take_state(self) -> bool:
        try:
            self.session.form_group()
        except CommunicationError as lost:
            logger.info("taking over the state failed (%s); asking again", lost)
            return False
        return True

    def _admit(self, group: Group, communicator: Communicator) -> None:
        """Hand the state to the group's newcomers. All members call this, at the same point of the same call."""
        began = time.monotonic()
        newcomers = [rank for rank, member in enumerate(group.members) if member.identity in group.newcomers]
        donors = [rank for rank in range(group.size) if rank not in newcomers]
        own = self.export() if communicator.rank in donors else None
        state = transfer(communicator, donors=donors, receivers=newcomers, state=own)
        if state is not None:
            self.adopt(state)
        elif communicator.rank == donors[0]:
            assert own is not None
            for rank in newcomers:
                self._tell_joined(group, rank, time.monotonic() - began, own.num_bytes)

    def _tell_joined(self, group: Group, rank: int, seconds: float, state_bytes: int) -> None:
        identity = group.members[rank].identity
        event = MemberJoined(identity.worker, identity.incarnation, group.generation, seconds, state_bytes)
        emit(event)
        self.session.membership.report_event(event)

    # ---------------------------------------------------------------------------------------------------------- state

    def export(self) -> State:
        """Everything that a newcomer needs: models, the call's progress, and how far the job is."""
        entries, arrays = pack(self._numbered())
        values = {
            "round": self.session.round,
            "stage": self._stage,
            "num_models": len(self.parts),
            "parts": entries,
        }
        return State(values, arrays)

    def adopt(self, state: State, *, strict: bool = True) -> None:
        """Become equal to the exporter. Unless `strict`, a model that looks otherwise there keeps its state."""
        others = state.values["num_models"]
        # in `_take_over`, the others may have distributed more models on their way to the end
        if len(self.parts) > others or (len(self.parts) < others and not self._taking_over):
            raise RanksDisagree(
                f"this worker has distributed {len(self.parts)} models where the others have {others}: its script took "
                "another path"
            )
        unpack(dict(self._numbered()), state.values["parts"], state.arrays, strict=strict)
        self._stage = state.values["stage"]
        self.session.round = state.values["round"]

    def _numbered(self) -> list[tuple[int, Recoverable]]:
        """The models that are left, and the progress of the call under way."""
        progress = [] if self._progress is None else [(PROGRESS, self._progress)]
        return [*self.parts.items(), *progress]


class Agreement:
    """The round that opens a call: every rank's description, compared by all."""

    step = None
    samples = 0

    def __init__(self, kind: str, description: Description, state_digests: Digests) -> None:
        self.name = kind
        self._own = encode((dict(description), dict(state_digests)))
        self._descriptions: list[Description] = []
        self.states_differ = False

    def work(self, group: Group, rank: int, communicator: Communicator) -> bytes:
        return self._own

    def talk(self, work: bytes, communicator: Communicator) -> list[bytes]:
        return communicator.all_gather_bytes(work)

    def ballot(self, work: bytes, proposal: list[bytes]) -> Ballot:
        return Ballot(digest=checksum(b"".join(proposal)))

    def change(self, proposal: list[bytes]) -> None:
        answers = [decode(payload) for payload in proposal]
        self._descriptions = [description for description, _ in answers]
        self.states_differ = differ([digests for _, digests in answers])

    def differences(self) -> list[list[str]]:
        """Rows of a table; none when all are about to do the same."""
        return differences(self._descriptions)


class TakeStateOfRankZero:
    """The round that makes all ranks' models equal to rank 0's."""

    name = "broadcast state"
    step = None
    samples = 0

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def work(self, group: Group, rank: int, communicator: Communicator) -> State | None:
        return self._calls.export() if rank == 0 else None

    def talk(self, work: State | None, communicator: Communicator) -> State | None:
        return transfer(communicator, donors=[0], receivers=range(1, communicator.size), state=work)

    def ballot(self, work: State | None, proposal: State | None) -> Ballot:
        state = proposal or work
        assert state is not None
        return Ballot(digest=state.digest())

    def change(self, proposal: State | None) -> None:
        if proposal is not None:
            self._calls.adopt(proposal, strict=False)


def differences(descriptions: Sequence[Description]) -> list[list[str]]:
    """Rows [what, rank 0's, rank 1's, ...] for each line in which the descriptions differ."""
    rows = []
    keys = list(dict.fromkeys(key for description in descriptions for key in description))
    for key in keys:
        columns = [description.get(key, "").split("\n") for description in descriptions]
        for line in range(max(map(len, columns))):
            cells = [column[line] if line < len(column) else "-" for column in columns]
            if len(set(cells)) > 1:
                rows.append([f"{key} {line + 1}" if max(map(len, columns)) > 1 else key, *cells])
    return rows


def render_table(rows: Sequence[Sequence[str]], *, max_rows: int = 20) -> str:
    """A plain table with a head line of ranks."""
    head = ["", *(f"rank {rank}" for rank in range(len(rows[0]) - 1))]
    shown = [head, *rows[:max_rows]]
    widths = [max(len(row[column]) for row in shown) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    if len(rows) > max_rows:
        lines.append(f"... and {len(rows) - max_rows} more lines")
    return "\n".join(lines)
