"""A group of one, without a coordinator."""

from __future__ import annotations

from paceline.coordinator.protocols import Membership, Report, Ruling, Settlement
from paceline.coordinator.solo import SoloMembership
from paceline.types import Member, WorkerIdentity
from unit.coordinator.desk import BOUNDARY, VOTED, WORKING


def test_one_process_alone_is_a_group_of_one() -> None:
    membership: Membership = SoloMembership()
    member = Member(WorkerIdentity(0, 1), "here", "", 1)
    assert membership.identity == WorkerIdentity(0, 1)
    assert membership.expected_workers == 1
    assert membership.join(member, on_notice=print) == 0
    ruling = membership.meet(Report(0, 0, -1, BOUNDARY))
    assert isinstance(ruling, Ruling)
    assert ruling.group.members == (member,)
    assert (ruling.group.generation, membership.newest_generation) == (1, 1)
    assert ruling.settlement is Settlement.NOTHING


def test_a_round_that_one_process_alone_did_not_finish_is_discarded() -> None:
    membership = SoloMembership()
    membership.join(Member(WorkerIdentity(0, 1), "here", "", 1), on_notice=print)
    for state in (WORKING, VOTED):
        ruling = membership.meet(Report(1, 0, 3, state))
        assert isinstance(ruling, Ruling)
        assert ruling.settlement is Settlement.DISCARD


def test_what_is_told_to_nobody_does_no_harm() -> None:
    membership = SoloMembership()
    membership.record_call(0, b"result")
    membership.report_event(object())
    membership.fail("ValueError", "Traceback")
    membership.leave()
    membership.close()
