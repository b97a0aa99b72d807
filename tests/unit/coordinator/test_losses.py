"""Members are lost: how that is noticed, what the survivors are told, and how they go on."""

from __future__ import annotations

from paceline.coordinator.inputs import Tick
from paceline.coordinator.messages import Heartbeat, KillWorker
from paceline.coordinator.protocols import Settlement
from paceline.observability.events import GroupFormed, JobPaused, MemberLost, WorkerExited
from paceline.types import WorkerIdentity
from unit.coordinator.desk import VOTED, WORKING, Desk, workers_of


def test_a_killed_member_costs_the_others_one_verdict_and_one_meeting() -> None:
    desk = Desk(workers=3)
    desk.form()
    desk.disconnect(1)
    for worker in (0, 2):
        verdict = desk.verdicts(worker)[-1]
        assert (verdict.generation, verdict.lost) == (1, (WorkerIdentity(1, 1),))
        assert verdict.reason == "worker 1 was lost: its connection closed"
    assert desk.told_events(MemberLost) == [MemberLost(1, 1, 1, "its connection closed")]
    desk.meet(0, 4, WORKING)
    assert desk.generation(0) == 1
    desk.meet(2, 4, VOTED)
    ruling = desk.ruling(2)
    assert ruling.group.generation == 2
    assert workers_of(ruling) == [0, 2]
    assert ruling.settlement is Settlement.DISCARD
    assert ruling.reason == (
        "worker 1 was lost (its connection closed); 2 go on; round 4 is discarded: nobody has committed it"
    )
    assert desk.told_events(GroupFormed)[-1] == GroupFormed(2, (0, 2), (), ruling.reason)


def test_a_reported_exit_is_a_loss_too_and_is_counted_once() -> None:
    desk = Desk(workers=2)
    desk.start(1)
    desk.form()
    desk.exit(1, signal="SIGKILL")
    desk.disconnect(1)
    assert desk.told_events(MemberLost) == [MemberLost(1, 1, 1, "its process ended: SIGKILL")]
    assert desk.told_events(WorkerExited) == [WorkerExited(1, 1, None, "SIGKILL")]
    assert len(desk.verdicts(0)) == 1


def test_a_silent_member_is_lost_fenced_and_its_agent_kills_it() -> None:
    desk = Desk(workers=2)
    desk.start(1)
    desk.form()
    desk.frozen.add(11)
    desk.wait(2.75)
    assert not desk.told_events(MemberLost)
    desk.wait(0.5)
    assert desk.told_events(MemberLost) == [MemberLost(1, 1, 1, "silent for 3.2 s")]
    assert desk.is_fenced(1)
    assert 11 in desk.dropped
    assert desk.orders(KillWorker) == [KillWorker(1, 1, "silent for 3.2 s")]
    assert desk.verdicts(0)[-1].lost == (WorkerIdentity(1, 1),)


def test_a_fenced_member_that_thaws_is_fenced_again() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.frozen.add(11)
    desk.wait(4.0)
    desk.sent.clear()
    desk.say(1, Heartbeat())
    assert desk.is_fenced(1)
    desk.join(1)
    assert desk.coordinator.job.places[1].status.value == "lost"


def test_heartbeats_count_only_after_the_join() -> None:
    desk = Desk(workers=2)
    desk.start(0)
    desk.wait(60.0)
    assert not desk.told_events(MemberLost)


def test_a_pause_of_the_coordinator_itself_counts_against_nobody() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.now += 30.0
    desk.handle(Tick())
    desk.wait(2.0)
    assert not desk.told_events(MemberLost)


def test_a_voted_round_is_committed_when_one_survivor_has_committed_it() -> None:
    desk = Desk(workers=3)
    desk.form()
    desk.disconnect(0)
    desk.meet(1, 7)
    desk.meet(2, 6, VOTED)
    assert desk.ruling(1).settlement is Settlement.NOTHING
    assert desk.ruling(2).settlement is Settlement.COMMIT


def test_the_vote_of_a_call_that_a_lost_member_had_ended_is_committed() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.record(1, 0, b"history")
    desk.kill(1)
    desk.meet(0, 6, VOTED)
    assert desk.ruling(0).settlement is Settlement.COMMIT
    assert desk.coordinator.job.highest == 7


def test_a_commit_that_was_reported_before_the_reporter_died_stays() -> None:
    desk = Desk(workers=3)
    desk.form()
    desk.disconnect(0)
    desk.meet(1, 7)
    desk.disconnect(1)
    desk.meet(2, 6, VOTED)
    assert desk.ruling(2).settlement is Settlement.COMMIT
    assert workers_of(desk.ruling(2)) == [2]


def test_reports_that_contradict_each_other_end_the_job_loudly() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.meet(0, 7, suspects=(1,))
    desk.meet(1, 6, WORKING)
    assert desk.outcome is not None
    assert desk.outcome.exit_code == 1
    assert desk.outcome.reason.startswith("the workers' reports contradict each other: 7 rounds are committed")


def test_a_suspect_that_is_alive_and_meets_stays_in() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.meet(0, 3, WORKING, suspects=(1,))
    assert desk.verdicts(1)[-1].lost == ()
    assert desk.verdicts(1)[-1].reason == "worker 0 asks all to meet: test"
    assert not desk.verdicts(0)
    desk.meet(1, 3, WORKING, suspects=(0,))
    assert desk.ruling(0).group.generation == 2
    assert workers_of(desk.ruling(0)) == [0, 1]
    assert not desk.told_events(MemberLost)


def test_the_coordinator_waits_for_the_verdict_about_a_suspect() -> None:
    desk = Desk(workers=3)
    desk.form()
    desk.meet(0, 3, WORKING, suspects=(1,))
    desk.meet(2, 3, WORKING, suspects=(1,))
    assert desk.generation(0) == 1
    desk.exit(1, signal="SIGKILL")
    assert workers_of(desk.ruling(0)) == [0, 2]


def test_a_member_that_is_stuck_inside_the_call_is_lost_after_the_progress_timeout() -> None:
    desk = Desk(workers=2, progress_timeout_seconds=60.0)
    desk.start(1)
    desk.form()
    desk.meet(0, 3, WORKING, suspects=(1,))
    desk.wait(59.0)
    assert not desk.told_events(MemberLost)
    desk.wait(2.0)
    assert desk.told_events(MemberLost)[0].reason == "alive, but did not meet the others within 60 s"
    assert desk.is_fenced(1)
    assert desk.orders(KillWorker)
    assert workers_of(desk.ruling(0)) == [0]


def test_a_member_that_is_past_the_call_of_the_others_is_waited_for_as_at_the_start() -> None:
    desk = Desk(workers=2, progress_timeout_seconds=60.0)
    desk.form()
    desk.record(1, 0)
    desk.meet(0, 3, VOTED, suspects=(1,))
    desk.wait(200.0)
    assert not desk.told_events(MemberLost)
    desk.meet(1, 4, call=1)
    assert desk.ruling(0).settlement is Settlement.COMMIT
    assert workers_of(desk.ruling(0)) == [0, 1]


def test_a_member_that_may_not_have_come_to_the_call_yet_is_waited_for_as_at_the_start() -> None:
    desk = Desk(workers=2, progress_timeout_seconds=60.0)
    desk.form()
    desk.meet(0, 0, WORKING, suspects=(1,), call_agreed=False)
    desk.wait(290.0)
    assert not desk.told_events(MemberLost)
    desk.wait(15.0)
    assert desk.told_events(MemberLost)[0].reason == "alive, but did not meet the others within 300 s"


def test_a_member_that_did_not_hear_that_all_meet_is_told() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.meet(0, 3)
    desk.wait(0.75)
    assert not desk.verdicts(1)
    desk.wait(0.75)
    assert desk.verdicts(1)[-1].reason == "worker 0 met for the next group"
    desk.meet(1, 3, WORKING)
    assert desk.generation(1) == 2


def test_several_losses_at_once_make_one_new_group() -> None:
    desk = Desk(workers=4)
    desk.form()
    desk.disconnect(1)
    desk.meet(0, 3, WORKING)
    desk.disconnect(3)
    desk.meet(2, 3, WORKING)
    assert workers_of(desk.ruling(2)) == [0, 2]
    assert desk.verdicts(2)[-1].lost == (WorkerIdentity(1, 1), WorkerIdentity(3, 1))


def test_a_member_that_is_lost_while_it_waits_is_not_in_the_group() -> None:
    desk = Desk(workers=3)
    desk.form()
    desk.disconnect(2)
    desk.meet(0, 3, WORKING)
    desk.disconnect(0)
    desk.meet(1, 3, WORKING)
    assert workers_of(desk.ruling(1)) == [1]


def test_a_member_lost_right_after_the_ruling_ends_the_new_generation() -> None:
    desk = Desk(workers=3)
    desk.form()
    desk.disconnect(2)
    desk.meet(0, 3, WORKING)
    desk.meet(1, 3, WORKING)
    desk.disconnect(1)
    assert desk.verdicts(0)[-1].generation == 2
    desk.meet(0, 3)
    assert desk.generation(0) == 3


def test_below_min_workers_the_job_pauses_and_says_so_until_someone_joins() -> None:
    desk = Desk(workers=2, min_workers=2)
    desk.start(1)
    desk.form()
    desk.kill(1)
    desk.meet(0, 3, WORKING)
    desk.wait(20.0)
    assert desk.told_events(JobPaused) == [JobPaused(1, 2)]
    assert desk.generation(0) == 1
    desk.start(1, incarnation=2)
    desk.join(1, incarnation=2)
    assert desk.joined(1, 2).generation == 1
    desk.meet(1, incarnation=2)
    assert workers_of(desk.ruling(0)) == [0, 1]
    assert desk.ruling(0).settlement is Settlement.DISCARD
    assert desk.ruling(0).group.newcomers == {WorkerIdentity(1, 2)}


def test_a_pause_that_nobody_can_end_ends_the_job() -> None:
    desk = Desk(workers=2, min_workers=2)
    desk.start(1)
    desk.form()
    desk.kill(1)
    desk.meet(0, 3, WORKING)
    desk.give_up(1)
    assert desk.outcome is not None
    assert (
        desk.outcome.reason == "too few workers are left: 1 of at least 2 can take part (worker 1: it failed 3 times)"
    )


def test_a_pause_has_a_deadline() -> None:
    desk = Desk(workers=2, min_workers=2, pause_timeout_seconds=30.0)
    desk.form()
    desk.disconnect(1)
    desk.meet(0, 3, WORKING)
    desk.wait(31.0)
    assert desk.outcome is not None
    assert desk.outcome.reason == "fewer than 2 workers for 30 s"


def test_a_place_that_is_given_up_later_is_gone_without() -> None:
    desk = Desk(workers=3)
    desk.start(1)
    desk.form()
    desk.kill(1)
    desk.give_up(1)
    for worker in (0, 2):
        desk.meet(worker, 3, WORKING)
    assert workers_of(desk.ruling(0)) == [0, 2]
    for worker in (0, 2):
        desk.leave(worker)
    assert desk.outcome is not None
    assert desk.outcome.exit_code == 0


def test_a_process_whose_connection_closed_but_which_does_not_end_is_killed_by_its_agent() -> None:
    desk = Desk(workers=2)
    desk.start(1)
    desk.form()
    desk.disconnect(1)
    desk.wait(2.5)
    assert not desk.orders(KillWorker)
    desk.wait(1.0)
    assert desk.orders(KillWorker) == [KillWorker(1, 1, "its connection closed")]


def test_messages_of_a_lost_process_that_come_late_change_nothing() -> None:
    desk = Desk(workers=2)
    desk.start(1)
    desk.form()
    desk.exit(1, signal="SIGKILL")
    desk.record(1, 0, b"late")
    desk.meet(1, 9)
    assert desk.coordinator.job.ended_calls.number == 0
    assert desk.coordinator.job.highest == -1
