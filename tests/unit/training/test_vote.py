"""The vote: one pure decision from all members' records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import ProtocolError
from paceline.training.vote import VoteRecord, decide, minority

YES = VoteRecord(generation=3, round=7, digest=11, fingerprint=5, newest_generation=3, work_seconds=0.25, stop=False)
WORDS = st.integers(0, 2**64 - 1)
RECORDS = st.builds(
    VoteRecord,
    generation=st.just(3),
    round=st.just(7),
    digest=st.integers(0, 2),
    fingerprint=st.integers(0, 2),
    newest_generation=st.integers(3, 4),
    work_seconds=st.floats(0, 100, width=32),
    stop=st.booleans(),
    halt=st.booleans(),
)
VOTES = st.lists(RECORDS, min_size=1, max_size=6)


@given(record=st.builds(VoteRecord, WORDS, WORDS, WORDS, WORDS, WORDS, st.floats(width=32, allow_nan=False)))
def test_a_record_comes_back_as_it_was_sent(record: VoteRecord) -> None:
    assert VoteRecord.decode(record.encode()) == record


def test_a_record_of_another_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"a vote has \d+ bytes, got 3"):
        VoteRecord.decode(b"abc")


@settings(max_examples=40)
@given(VOTES)
def test_a_round_is_committed_exactly_when_all_hold_the_same_and_nobody_wants_to_halt(
    records: list[VoteRecord],
) -> None:
    alike = len({(record.digest, record.fingerprint) for record in records}) == 1
    assert (decide(records).outcome == "commit") == (alike and not any(record.halt for record in records))


@settings(max_examples=40)
@given(VOTES)
def test_whoever_wants_to_halt_is_heard_before_anything_else(records: list[VoteRecord]) -> None:
    assert (decide(records).outcome == "halt") == any(record.halt for record in records)


@settings(max_examples=40)
@given(VOTES)
def test_one_member_that_heard_of_a_newer_generation_sends_all_to_meet(records: list[VoteRecord]) -> None:
    assert decide(records).meet == any(record.newest_generation > record.generation for record in records)


@settings(max_examples=40)
@given(VOTES)
def test_one_member_that_was_asked_to_stop_stops_all(records: list[VoteRecord]) -> None:
    assert decide(records).stop == any(record.stop for record in records)


@settings(max_examples=40)
@given(VOTES)
def test_the_slowest_is_named(records: list[VoteRecord]) -> None:
    slowest = records[decide(records).slowest]
    assert slowest.work_seconds == max(record.work_seconds for record in records)


def test_other_data_is_told_before_another_result() -> None:
    other = replace(YES, digest=12, fingerprint=6)
    assert decide([YES, YES, other]).outcome == "data differ"
    assert decide([YES, YES, other]).suspects == (2,)
    assert decide([YES, replace(YES, digest=12), YES]).outcome == "digests differ"
    assert decide([YES, replace(YES, digest=12), YES]).suspects == (1,)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_the_minority_is_everyone_but_the_most_frequent_and_between_equals_the_first(values: list[int]) -> None:
    suspects = minority(values)
    kept = {value for rank, value in enumerate(values) if rank not in suspects}
    assert len(kept) == 1
    (favourite,) = kept
    assert suspects == tuple(rank for rank, value in enumerate(values) if value != favourite)
    assert all(values.count(value) <= values.count(favourite) for value in values)
    rivals = [value for value in values if values.count(value) == values.count(favourite)]
    assert rivals[0] == favourite


def test_members_that_vote_on_different_rounds_are_a_bug_that_is_told() -> None:
    with pytest.raises(ProtocolError, match="rank 1: generation 3 round 8"):
        decide([YES, replace(YES, round=8)])
