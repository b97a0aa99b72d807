"""The first group: who is waited for, for how long, and who is refused."""

from __future__ import annotations

import pytest

from paceline.coordinator.inputs import WorkerSaid
from paceline.coordinator.messages import Awaiting, Fail, Heartbeat, Join, Refused, StartTimedOut, StopWorkers
from paceline.coordinator.protocols import Settlement
from paceline.coordinator.rules import JobRules
from paceline.errors import ConfigError
from paceline.observability.events import GroupFormed, MemberLost, WorkerAwaited, WorkerStarted
from paceline.types import WorkerIdentity
from unit.coordinator.desk import Desk, member, workers_of


def test_the_first_group_forms_when_all_have_met() -> None:
    desk = Desk(workers=3)
    for worker in (2, 0):
        desk.join(worker)
        desk.meet(worker)
    desk.join(1)
    assert not desk.rulings(0)
    desk.meet(1)
    for worker in range(3):
        ruling = desk.ruling(worker)
        assert ruling.group.generation == 1
        assert workers_of(ruling) == [0, 1, 2]
        assert not ruling.group.newcomers
        assert ruling.settlement is Settlement.NOTHING
    assert desk.told_events(GroupFormed) == [GroupFormed(1, (0, 1, 2), (), "workers 0, 1, 2 join")]


def test_joining_tells_the_generation_and_the_rules() -> None:
    desk = Desk(workers=2, heartbeat_seconds=0.25)
    desk.join(0)
    joined = desk.joined(0)
    assert (joined.generation, joined.expected_workers, joined.heartbeat_seconds) == (0, 2, 0.25)


def test_a_wait_says_for_whom_every_five_seconds() -> None:
    desk = Desk(workers=2, hosts=("a", "b"))
    desk.join(0)
    desk.meet(0)
    desk.wait(4.5)
    assert not desk.told_events(WorkerAwaited)
    desk.wait(6.0)
    assert desk.told_events(WorkerAwaited) == [WorkerAwaited(1, 2, "b", 5.0), WorkerAwaited(1, 2, "b", 10.0)]
    assert [message.text for message in desk.told(0, Awaiting)] == [
        "waiting for worker 1 of 2 (b, 5 s)",
        "waiting for worker 1 of 2 (b, 10 s)",
    ]


def test_a_start_that_takes_too_long_ends_the_job_and_names_the_missing() -> None:
    desk = Desk(workers=4, start_timeout_seconds=20.0)
    desk.join(0)
    desk.meet(0)
    desk.join(1)
    desk.start(2)
    desk.wait(19.0)
    assert desk.outcome is None
    desk.wait(2.0)
    assert desk.outcome is not None
    assert desk.outcome.exit_code == 124
    assert desk.outcome.reason == (
        "3 of 4 workers did not start within 20 s: "
        "worker 1 on a joined, but has not come to its first call; "
        "worker 2 on a runs, but has not joined; "
        "worker 3 on host not known yet was not started"
    )
    assert desk.told(0, StartTimedOut)[0].message == desk.outcome.reason
    assert not desk.stops(0)
    assert desk.stops(1)[0].immediate
    assert desk.orders(StopWorkers)[0].immediate


def test_nobody_is_timed_out_while_all_are_busy_before_their_first_call() -> None:
    desk = Desk(workers=2, start_timeout_seconds=20.0)
    for worker in range(2):
        desk.start(worker)
    desk.join(0)
    desk.wait(60.0)
    assert desk.outcome is None


def test_a_place_that_stays_empty_ends_the_start() -> None:
    desk = Desk(workers=2, start_timeout_seconds=20.0)
    desk.start(0)
    desk.wait(21.0)
    assert desk.outcome is not None
    assert "worker 1 on host not known yet was not started" in desk.outcome.reason


def test_a_worker_lost_during_the_start_is_awaited_again() -> None:
    desk = Desk(workers=2, start_timeout_seconds=20.0)
    desk.start(0)
    desk.join(0)
    desk.meet(0)
    desk.join(1)
    desk.wait(5.0)
    desk.kill(0)
    assert desk.told_events(MemberLost)[0].worker == 0
    desk.meet(1)
    assert not desk.rulings(1)
    desk.start(0, incarnation=2)
    desk.join(0, incarnation=2)
    assert desk.joined(0, 2).generation == 0
    desk.meet(0, incarnation=2)
    assert desk.ruling(1).group.members[0].identity == WorkerIdentity(0, 2)
    assert not desk.ruling(1).group.newcomers


def test_crashes_during_the_start_do_not_move_its_end() -> None:
    desk = Desk(workers=2, start_timeout_seconds=20.0)
    for incarnation in range(1, 5):
        desk.join(0, incarnation)
        desk.meet(0, incarnation=incarnation)
        desk.wait(4.0)
        desk.disconnect(0, incarnation)
    desk.wait(5.0)
    assert desk.outcome is not None
    assert "worker 0 on a was lost: its connection closed" in desk.outcome.reason


def test_a_worker_that_ends_well_before_its_first_call_is_not_waited_for() -> None:
    desk = Desk(workers=3)
    for worker in range(3):
        desk.start(worker)
    for worker in (0, 1):
        desk.join(worker)
        desk.meet(worker)
    desk.exit(2, code=0)
    assert workers_of(desk.ruling(0)) == [0, 1]


def test_a_place_that_is_given_up_is_gone_without_while_there_are_enough() -> None:
    desk = Desk(workers=3, min_workers=2)
    for worker in range(2):
        desk.join(worker)
        desk.meet(worker)
    desk.start(2)
    desk.exit(2, code=1)
    assert not desk.rulings(0)
    desk.give_up(2)
    assert workers_of(desk.ruling(0)) == [0, 1]


def test_too_few_places_that_can_be_filled_end_the_start() -> None:
    desk = Desk(workers=2, min_workers=2)
    desk.join(0)
    desk.meet(0)
    desk.start(1)
    desk.exit(1, code=1)
    desk.give_up(1)
    assert desk.outcome is not None
    assert desk.outcome.exit_code == 1
    reason = "the job cannot start: 1 of at least 2 can take part (worker 1: it failed 3 times)"
    assert desk.outcome.reason == reason


def test_a_second_process_for_the_same_identity_is_refused() -> None:
    desk = Desk(workers=2)
    desk.join(0)
    desk.handle(WorkerSaid(77, WorkerIdentity(0, 1), Join(member(0))))
    assert (77, Refused("worker 0, incarnation 1, is here already")) in desk.sent
    assert 77 in desk.dropped
    desk.meet(0)
    desk.join(1)
    desk.meet(1)
    assert desk.rulings(0)


def test_places_that_do_not_exist_are_refused() -> None:
    desk = Desk(workers=2)
    desk.join(2)
    desk.join(0, incarnation=0)
    assert desk.told(2, Refused)
    assert desk.told(0, Refused, incarnation=0)


def test_a_process_that_was_replaced_is_fenced() -> None:
    desk = Desk(workers=2)
    desk.join(0)
    desk.join(0, incarnation=2)
    assert desk.is_fenced(0)
    assert desk.told_events(MemberLost)[0].reason == "it was replaced by a newer process"
    desk.sent.clear()
    desk.say(0, Heartbeat())
    assert desk.is_fenced(0)
    desk.join(0, incarnation=1)
    assert not desk.is_fenced(0, incarnation=2)


def test_impossible_reports_are_refused() -> None:
    desk = Desk(workers=2)
    desk.join(0)
    desk.meet(0, committed=5)
    desk.meet(0, generation=3)
    desk.meet(0, call=-1)
    reasons = [message.reason for message in desk.told(0, Refused)]
    assert reasons == [
        "worker 0 was in no group yet, so it cannot hold 5 rounds of this job",
        "worker 0 was last ruled into generation 0, not 3",
        "call -1 and -1 committed rounds cannot be",
    ]


def test_a_worker_may_fail_before_it_joins() -> None:
    desk = Desk(workers=2)
    desk.start(1)
    desk.say(1, Fail("ImportError: x", "Traceback"))
    assert desk.outcome is not None
    assert desk.outcome.failure is not None
    assert desk.outcome.failure.worker == 1


def test_an_agent_that_is_lost_takes_those_with_it_that_had_not_joined() -> None:
    desk = Desk(workers=2)
    desk.start(0)
    desk.start(1)
    desk.join(0)
    desk.disconnect(100, 0)  # the agent's connection, 1000
    desk.meet(0)
    desk.wait(6.0)
    assert [event.worker for event in desk.told_events(WorkerAwaited)] == [1]
    assert desk.coordinator.job.places[1].reason == "the agent on a is gone (its connection closed)"


def test_started_processes_are_told_as_events() -> None:
    desk = Desk(workers=2)
    desk.start(1)
    assert desk.told_events(WorkerStarted) == [WorkerStarted(1, 1, 1, "a")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workers": 0}, "at least one worker"),
        ({"workers": 2, "min_workers": 3}, "give a number from 1 to 2"),
        ({"workers": 2, "hosts": ("a",)}, "names 1 places"),
        ({"workers": 1, "lost_after_seconds": 0.6}, "give at least 1.0"),
    ],
)
def test_rules_that_cannot_be_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JobRules(**fields)  # type: ignore[arg-type]
