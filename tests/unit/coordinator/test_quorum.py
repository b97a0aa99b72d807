"""Which group can be formed, or for whom it waits."""

from __future__ import annotations

from typing import Any

from paceline.coordinator.protocols import Report, RoundState
from paceline.coordinator.quorum import Attendance, Candidate, Decision, decide, name_workers
from paceline.types import Member, WorkerIdentity


def candidate(worker: int, committed: int | None = None, call: int = 0) -> Candidate:
    """`committed` None: it has not met."""
    report = None if committed is None else Report(0, call, committed, RoundState.BOUNDARY)
    return Candidate(Member(WorkerIdentity(worker, 1), "a", f"1.1.1.1:{worker}", 1), report)


def decide_on(**changes: Any) -> Decision:
    base: dict[str, Any] = {
        "generation": 1,
        "survivors": (),
        "outsiders": (),
        "absent": (),
        "call": 0,
        "state_exists": True,
        "min_workers": 1,
    }
    return decide(Attendance(**(base | changes)))


def names(decision: Decision) -> list[int]:
    return [member.worker for member in decision.members]


def test_the_first_group_takes_all_in_the_order_of_their_numbers_and_none_is_a_newcomer() -> None:
    decision = decide_on(generation=0, outsiders=[candidate(0, -1), candidate(1, -1)], state_exists=False)
    assert decision.kind == "form"
    assert names(decision) == [0, 1]
    assert not decision.newcomers
    assert decision.reason == "workers 0, 1 join"


def test_the_first_group_waits_for_the_absent_and_for_those_who_are_not_ready() -> None:
    decision = decide_on(generation=0, outsiders=[candidate(0, -1), candidate(2)], absent=[1], state_exists=False)
    assert decision.kind == "wait"
    assert decision.awaited == (1, 2)


def test_the_first_group_needs_min_workers() -> None:
    decision = decide_on(generation=0, outsiders=[candidate(0, -1)], state_exists=False, min_workers=2)
    assert (decision.kind, decision.num_ready, decision.reason) == ("pause", 1, "paused: 1 of 2 workers")


def test_survivors_keep_their_order_and_newcomers_come_last() -> None:
    survivors = [candidate(2, 5), candidate(0, 5)]
    decision = decide_on(survivors=survivors, outsiders=[candidate(1, -1)])
    assert names(decision) == [2, 0, 1]
    assert decision.newcomers == {WorkerIdentity(1, 1)}
    assert decision.reason == "2 go on, worker 1 joins"


def test_every_survivor_must_meet() -> None:
    decision = decide_on(survivors=[candidate(0, 5), candidate(1)], outsiders=[candidate(2, -1)])
    assert (decision.kind, decision.awaited) == ("wait", (1,))


def test_a_newcomer_is_let_in_only_at_the_call_that_the_others_are_in() -> None:
    decision = decide_on(survivors=[candidate(0, 5, 3)], outsiders=[candidate(1, -1, 2), candidate(2, -1, 3)], call=3)
    assert names(decision) == [0, 2]


def test_while_no_round_is_committed_a_fresh_process_is_as_good_as_any() -> None:
    decision = decide_on(survivors=[candidate(0, -1)], outsiders=[candidate(1, -1)], state_exists=False)
    assert names(decision) == [0, 1]
    assert not decision.newcomers


def test_without_a_holder_the_state_is_lost() -> None:
    decision = decide_on(survivors=[candidate(1, -1)], outsiders=[candidate(0, -1)])
    assert decision.kind == "lost"
    assert "no checkpoint" in decision.reason


def test_too_few_workers_pause_and_newcomers_count() -> None:
    assert decide_on(survivors=[candidate(0, 5)], min_workers=2, absent=[1]).kind == "pause"
    assert decide_on(survivors=[candidate(0, 5)], outsiders=[candidate(1, -1)], min_workers=2).kind == "form"


def test_a_newcomer_whose_transfer_failed_stays_a_newcomer() -> None:
    decision = decide_on(survivors=[candidate(0, 5), candidate(1, -1)])
    assert decision.newcomers == {WorkerIdentity(1, 1)}


def test_workers_are_named_and_long_lists_are_cut() -> None:
    assert name_workers((2,)) == "worker 2"
    assert name_workers((0, 2)) == "workers 0, 2"
    assert name_workers(range(12)) == "workers 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
