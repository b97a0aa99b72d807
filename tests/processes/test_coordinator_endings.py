"""A real coordinator and real worker processes: failures, stops and starts that take too long."""

from __future__ import annotations

from paceline.coordinator.agent_link import AgentLink
from paceline.coordinator.rules import JobRules, Outcome
from paceline.observability.events import (
    WorkerAwaited,
    WorkerFailed,
)
from processes.coordinator_jobs import JOB, Coordinator, form


def test_a_start_that_takes_too_long_is_told_to_those_who_wait() -> None:
    rules = JobRules(workers=2, hosts=("a", "b"), start_timeout_seconds=1.5, notice_seconds=0.5)
    with Coordinator(rules) as coordinator:
        link = coordinator.call(AgentLink.connect(coordinator.address, JOB, host="b"))
        for number in range(2):
            coordinator.call(link.report_started(number, 1, 100))
        worker = coordinator.start(0)
        worker.do("join")
        answer = worker.do("meet")
        assert answer["error"] == "StartTimeout"
        assert answer["message"] == "1 of 2 workers did not start within 2 s: worker 1 on b runs, but has not joined"
        assert coordinator.outcome().exit_code == 124
        assert coordinator.event(WorkerAwaited).host == "b"
        coordinator.call(link.close())


def test_a_failure_stops_all_others_at_once_and_is_the_jobs() -> None:
    with Coordinator(JobRules(workers=3)) as coordinator:
        workers = form(coordinator, 3)
        workers[1].tell("meet", committed=0, state="working")
        assert workers[0].do("fail") == {"done": "fail"}
        stopped = workers[1].answer()
        assert (stopped["error"], stopped["code"]) == ("JobStopped", 1)
        assert "worker 0 failed: ValueError: no" in stopped["message"]
        workers[2].notice()
        outcome = coordinator.outcome()
        assert outcome.exit_code == 1
        assert outcome.failure is not None
        assert outcome.failure.traceback.startswith("Traceback")
        assert coordinator.event(WorkerFailed).worker == 0


def test_a_failure_before_the_join_is_told_too() -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        worker = coordinator.start(1)
        assert worker.do("fail") == {"done": "fail"}
        worker.do("close")
        assert coordinator.outcome().reason == "worker 1 failed: ValueError: no"


def test_a_gentle_stop_reaches_the_members_and_ends_when_they_have_left() -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        workers = form(coordinator, 2)
        coordinator.request_stop(immediate=False)
        for worker in workers:
            assert worker.notice()["notice"] == "Stop"
            worker.do("leave")
        assert coordinator.outcome() == Outcome(130, "Ctrl-C")


def test_an_immediate_stop_ends_every_wait() -> None:
    with Coordinator(JobRules(workers=2, notice_seconds=0.2)) as coordinator:
        worker = coordinator.start(0)
        worker.do("join")
        worker.tell("meet")
        coordinator.event(WorkerAwaited)
        coordinator.request_stop(immediate=True)
        answer = worker.answer()
        assert (answer["error"], answer["code"]) == ("JobStopped", 130)
