"""How a job ends: complete, failed, or stopped; and what everyone is told."""

from __future__ import annotations

from paceline.coordinator.inputs import AgentConnected
from paceline.coordinator.messages import Dismiss, Heartbeat, Received, StopWorkers
from paceline.coordinator.protocols import Settlement
from paceline.coordinator.rules import Failure, Outcome
from paceline.observability.events import MemberLost, WorkerExited, WorkerFailed
from unit.coordinator.desk import AGENT, VOTED, WORKING, Desk, workers_of


def test_the_job_is_complete_when_all_have_left() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.leave(1)
    assert desk.told(1, Received)
    assert desk.outcome is None
    desk.leave(0)
    assert desk.outcome == Outcome(0, "the job is complete")
    assert desk.orders(Dismiss)
    assert not desk.told_events(MemberLost)
    assert not desk.verdicts(0)


def test_a_worker_that_exits_with_zero_has_left_well() -> None:
    desk = Desk(workers=2)
    for worker in range(2):
        desk.start(worker)
    desk.form()
    desk.leave(0)
    desk.exit(1, code=0)
    assert desk.outcome == Outcome(0, "the job is complete")


def test_a_closed_connection_may_turn_out_to_be_a_good_end() -> None:
    desk = Desk(workers=2)
    for worker in range(2):
        desk.start(worker)
    desk.form()
    desk.leave(0)
    desk.disconnect(1)
    desk.wait(0.5)
    assert desk.outcome is None
    desk.exit(1, code=0)
    assert desk.outcome == Outcome(0, "the job is complete")


def test_a_closed_connection_that_is_never_explained_is_a_loss() -> None:
    desk = Desk(workers=2)
    for worker in range(2):
        desk.start(worker)
    desk.form()
    desk.leave(0)
    desk.disconnect(1)
    desk.wait(4.0)
    assert desk.outcome is not None
    assert desk.outcome.exit_code == 1


def test_a_member_that_is_lost_before_the_others_finish_does_not_spoil_the_job() -> None:
    desk = Desk(workers=2)
    desk.start(1)
    desk.form()
    desk.kill(1)
    desk.leave(0)
    assert desk.outcome == Outcome(0, "the job is complete")


def test_the_last_member_that_is_killed_after_the_others_left_fails_the_job() -> None:
    desk = Desk(workers=2)
    desk.start(1)
    desk.form()
    desk.leave(0)
    desk.kill(1)
    assert desk.outcome is not None
    assert desk.outcome.exit_code == 1
    assert "worker 1: its connection closed; SIGKILL" in desk.outcome.reason


def test_who_waits_goes_on_without_those_who_left() -> None:
    desk = Desk(workers=3, min_workers=3)
    desk.form()
    desk.leave(2)
    desk.meet(0, 4, WORKING, suspects=(2,))
    desk.leave(1)
    assert workers_of(desk.ruling(0)) == [0]
    assert not desk.told_events(MemberLost)


def test_a_replacement_that_is_on_its_way_is_dismissed() -> None:
    desk = Desk(workers=2)
    desk.start(1)
    desk.form()
    desk.kill(1)
    desk.meet(0, 4, VOTED)
    desk.start(1, incarnation=2)
    desk.join(1, incarnation=2)
    desk.meet(1, incarnation=2)
    desk.leave(0)
    assert desk.outcome == Outcome(0, "the job is complete")
    assert desk.orders(Dismiss)
    stop = desk.stops(1, 2)[-1]
    assert (stop.immediate, stop.exit_code) == (True, 0)


def test_a_job_whose_scripts_never_ask_for_a_group_is_complete_when_they_end() -> None:
    desk = Desk(workers=2)
    for worker in range(2):
        desk.start(worker)
        desk.exit(worker, code=0)
    assert desk.outcome == Outcome(0, "all workers have ended well")


def test_a_job_in_which_no_worker_can_start_fails() -> None:
    desk = Desk(workers=2)
    for worker in range(2):
        desk.start(worker)
        desk.exit(worker, code=1)
        desk.give_up(worker)
    assert desk.outcome is not None
    assert desk.outcome.exit_code == 1
    assert "worker 0: it failed 3 times; worker 1: it failed 3 times" in desk.outcome.reason


def test_the_first_failure_stops_everyone_and_is_the_jobs() -> None:
    desk = Desk(workers=3)
    desk.form()
    desk.meet(2, 3, WORKING)
    desk.fail(1)
    desk.fail(0)
    reason = "worker 1 failed: ValueError: no"
    assert desk.outcome == Outcome(1, reason, Failure(1, "ValueError: no", "Traceback ..."))
    assert desk.told_events(WorkerFailed) == [WorkerFailed(1, "ValueError: no", "Traceback ...")]
    for worker in (0, 2):
        stop = desk.stops(worker)[-1]
        assert (stop.reason, stop.exit_code, stop.immediate) == (reason, 1, True)
    assert not desk.stops(1)
    assert desk.told(1, Received)
    assert desk.told(0, Received)
    assert desk.orders(StopWorkers) == [StopWorkers(reason, True, 1)]


def test_after_the_end_whoever_comes_is_told() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.fail(0)
    desk.sent.clear()
    desk.join(1, incarnation=2)
    assert desk.stops(1, 2)[-1].immediate
    desk.meet(1, incarnation=2, generation=0)
    desk.say(1, Heartbeat(), 2)
    desk.leave(1, 2)
    desk.handle(AgentConnected(AGENT, "b"))
    assert desk.orders(StopWorkers)[-1].immediate
    desk.exit(0, code=1)
    assert desk.told_events(WorkerExited)
    assert not desk.told_events(MemberLost)


def test_an_immediate_stop_ends_the_job_at_once() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.request_stop(immediate=True)
    assert desk.outcome == Outcome(130, "Ctrl-C")
    assert all(desk.stops(worker)[-1].immediate for worker in range(2))
    assert desk.orders(StopWorkers) == [StopWorkers("Ctrl-C", True, 130)]


def test_a_gentle_stop_lets_the_group_finish_its_round_and_ends_when_all_are_gone() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.request_stop(immediate=False)
    assert [desk.stops(worker)[-1].immediate for worker in range(2)] == [False, False]
    assert desk.orders(StopWorkers) == [StopWorkers("Ctrl-C", False, 130)]
    desk.leave(0)
    assert desk.outcome is None
    desk.leave(1)
    assert desk.outcome == Outcome(130, "Ctrl-C")


def test_a_gentle_stop_does_not_wait_for_workers_that_have_not_begun() -> None:
    desk = Desk(workers=3)
    desk.join(0)
    desk.meet(0)
    desk.join(1)
    desk.start(2)
    desk.request_stop(immediate=False)
    assert desk.stops(0)[-1].immediate
    assert desk.stops(1)[-1].immediate
    desk.join(2)
    assert desk.stops(2)[-1].immediate
    desk.exit(2, code=130)
    for worker in range(2):
        desk.disconnect(worker)
    assert desk.outcome == Outcome(130, "Ctrl-C")


def test_during_a_gentle_stop_survivors_still_settle_and_nobody_is_let_in() -> None:
    desk = Desk(workers=3, min_workers=3)
    desk.form()
    desk.disconnect(2)
    desk.join(2, incarnation=2)
    desk.meet(2, incarnation=2)
    desk.request_stop(immediate=False)
    assert desk.stops(2, 2)[-1].immediate
    desk.meet(0, 5)
    desk.meet(1, 4, VOTED)
    assert desk.ruling(1).settlement is Settlement.COMMIT
    assert workers_of(desk.ruling(1)) == [0, 1]


def test_workers_that_go_when_they_were_asked_to_stop_are_not_lost() -> None:
    desk = Desk(workers=3)
    for worker in range(3):
        desk.start(worker)
    desk.form()
    desk.request_stop(immediate=False)
    desk.disconnect(0)
    desk.exit(1, code=130)
    assert not desk.told_events(MemberLost)
    assert not desk.verdicts(2)
    desk.meet(2, 4, VOTED, suspects=(0,))
    assert workers_of(desk.ruling(2)) == [2]
    desk.leave(2)
    assert desk.outcome == Outcome(130, "Ctrl-C")


def test_a_gentle_stop_can_be_made_immediate() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.request_stop(immediate=False)
    desk.request_stop(immediate=False)
    desk.request_stop(immediate=True)
    assert desk.outcome == Outcome(130, "Ctrl-C")
    assert desk.stops(0)[-1].immediate
