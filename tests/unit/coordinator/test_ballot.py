"""How a cut round ends."""

from __future__ import annotations

import pytest

from paceline.coordinator.ballot import settle
from paceline.coordinator.protocols import Report, RoundState, Settlement
from paceline.errors import ProtocolError
from paceline.types import WorkerIdentity

BOUNDARY, WORKING, VOTED = RoundState.BOUNDARY, RoundState.WORKING, RoundState.VOTED
A, B, C = (WorkerIdentity(worker, 1) for worker in range(3))


def at(committed: int, state: RoundState, call: int = 0) -> Report:
    return Report(1, call, committed, state)


def test_a_round_that_one_member_committed_is_committed_by_all_who_voted() -> None:
    ballot = settle({A: at(5, BOUNDARY), B: at(4, VOTED), C: at(4, VOTED)})
    assert ballot.settlements == {A: Settlement.NOTHING, B: Settlement.COMMIT, C: Settlement.COMMIT}
    assert ballot.committed == 5
    assert ballot.reason == "round 4 is committed: all had voted for it (worker 1, 2 did not know yet)"


def test_the_member_that_is_ahead_discards_the_round_that_it_has_begun_since() -> None:
    ballot = settle({A: at(5, WORKING), B: at(4, VOTED)})
    assert ballot.settlements == {A: Settlement.DISCARD, B: Settlement.COMMIT}


def test_a_round_that_nobody_committed_is_discarded_by_all() -> None:
    ballot = settle({A: at(4, VOTED), B: at(4, WORKING), C: at(4, BOUNDARY)}, highest=4)
    assert ballot.settlements == {A: Settlement.DISCARD, B: Settlement.DISCARD, C: Settlement.NOTHING}
    assert ballot.committed == 4
    assert ballot.reason == "round 4 is discarded: nobody has committed it"


def test_at_a_boundary_nothing_is_settled() -> None:
    ballot = settle({A: at(4, BOUNDARY), B: at(4, BOUNDARY)})
    assert set(ballot.settlements.values()) == {Settlement.NOTHING}
    assert ballot.reason == "no round was open"


def test_before_the_first_commit_members_without_a_count_are_settled_like_those_with_none_committed() -> None:
    assert settle({A: at(-1, VOTED), B: at(-1, WORKING)}).settlements == {A: Settlement.DISCARD, B: Settlement.DISCARD}
    assert settle({A: at(-1, VOTED), B: at(1, BOUNDARY)}).settlements == {A: Settlement.COMMIT, B: Settlement.NOTHING}


def test_a_newcomer_whose_transfer_failed_has_nothing_to_commit() -> None:
    ballot = settle({A: at(7, WORKING), B: at(-1, WORKING), C: at(-1, BOUNDARY)}, newcomers={B, C})
    assert ballot.settlements == {A: Settlement.DISCARD, B: Settlement.DISCARD, C: Settlement.NOTHING}


def test_a_newcomer_that_got_the_state_votes_like_anyone() -> None:
    ballot = settle({A: at(8, BOUNDARY), B: at(7, VOTED)}, newcomers={B})
    assert ballot.settlements[B] is Settlement.COMMIT


def test_the_last_round_of_a_call_that_has_ended_is_committed_even_if_its_committers_are_gone() -> None:
    ballot = settle({A: at(9, VOTED, call=2), B: at(9, VOTED, call=2)}, highest=9, num_ended_calls=3)
    assert set(ballot.settlements.values()) == {Settlement.COMMIT}
    assert ballot.committed == 10


def test_a_commit_that_was_reported_stays_when_its_reporter_is_lost() -> None:
    ballot = settle({A: at(9, VOTED)}, highest=10)
    assert ballot.settlements == {A: Settlement.COMMIT}


@pytest.mark.parametrize("impossible", [at(4, WORKING), at(4, BOUNDARY), at(3, VOTED)])
def test_a_commit_without_a_members_vote_is_told_loudly(impossible: Report) -> None:
    with pytest.raises(ProtocolError, match=r"worker 1 holds . rounds .* committed without its vote"):
        settle({A: at(5, BOUNDARY), B: impossible})


def test_a_newcomer_that_holds_nothing_cannot_have_voted() -> None:
    with pytest.raises(ProtocolError, match="worker 1 holds no state"):
        settle({A: at(1, BOUNDARY), B: at(-1, VOTED)}, newcomers={B})
