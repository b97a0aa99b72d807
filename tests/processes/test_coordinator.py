"""A real coordinator and real worker processes: kills, freezes, restarts and replays."""

from __future__ import annotations

import queue
import signal
import time

import pytest

from paceline.coordinator.rules import JobRules, Outcome
from paceline.observability.events import (
    DataSharded,
    GroupFormed,
    MemberLost,
)
from processes.coordinator_jobs import Coordinator, form


def test_workers_form_a_group_train_and_leave() -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        workers = form(coordinator, 2)
        workers[0].do("event")
        assert coordinator.event(GroupFormed) == GroupFormed(1, (0, 1), (), "workers 0, 1 join")
        assert coordinator.event(DataSharded) == DataSharded("test", "by hand", 3, (2, 1))
        for worker in workers:
            worker.do("leave")
        assert coordinator.outcome() == Outcome(0, "the job is complete")
        assert coordinator.events.empty()


def test_a_kill_is_told_to_the_survivors_within_a_fraction_of_a_second() -> None:
    with Coordinator(JobRules(workers=3)) as coordinator:
        workers = form(coordinator, 3)
        killed = time.monotonic()
        workers[0].signal(signal.SIGKILL)
        for worker in workers[1:]:
            notice = worker.notice()
            assert (notice["notice"], notice["lost"]) == ("Verdict", [0])
            assert notice["time"] - killed < 2.0  # a few milliseconds on a machine that is not busy
            worker.tell("meet", committed=4, state="working")
        for worker in workers[1:]:
            ruling = worker.answer()
            assert (ruling["generation"], ruling["members"], ruling["settlement"]) == (2, [1, 2], "discard")
            assert ruling["time"] - killed < 3.0


def test_a_kill_while_the_others_meet_leaves_nobody_waiting() -> None:
    with Coordinator(JobRules(workers=3)) as coordinator:
        workers = form(coordinator, 3)
        workers[0].tell("meet", committed=5, suspects=[2])
        workers[1].tell("meet", committed=4, state="voted", suspects=[2])
        assert workers[2].notice()["lost"] == []
        workers[0].signal(signal.SIGKILL)
        assert workers[2].notice()["lost"] == [0]
        workers[2].tell("meet", committed=4, state="voted")
        for worker in workers[1:]:
            ruling = worker.answer()
            assert (ruling["members"], ruling["settlement"]) == ([1, 2], "commit")


def test_a_restarted_worker_replays_what_has_ended_and_is_let_in() -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        first, second = form(coordinator, 2)
        for worker in (first, second):
            worker.do("record", call=0, result="history of call 0")
        second.signal(signal.SIGKILL)
        first.notice()
        assert first.do("meet", committed=7, state="working", call=1)["settlement"] == "discard"
        again = coordinator.start(1, 2)
        assert again.do("join")["generation"] == 2
        replay = again.do("meet", call=0)
        assert (replay["replay"], replay["result"]) == (0, "history of call 0")
        again.tell("meet", call=1)
        assert first.do("newest", at_least=3)["newest"] == 3
        ruling = first.do("meet", committed=8, call=1)
        assert (ruling["generation"], ruling["members"], ruling["newcomers"]) == (3, [0, 1], [1])
        assert again.answer()["newcomers"] == [1]
        again.do("leave")
        first.do("leave")
        assert coordinator.outcome().exit_code == 0


def test_a_call_that_ends_while_a_restarted_worker_waits_is_replayed_to_it() -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        first, second = form(coordinator, 2)
        second.signal(signal.SIGKILL)
        first.notice()
        first.do("meet", committed=3, state="voted")
        again = coordinator.start(1, 2)
        again.do("join")
        again.tell("meet", call=0)
        first.do("newest", at_least=3)
        first.do("record", call=0, result="the end")
        assert again.answer()["result"] == "the end"


def test_a_frozen_worker_is_lost_by_its_silence_and_fenced_when_it_thaws() -> None:
    rules = JobRules(workers=2, heartbeat_seconds=0.2, lost_after_seconds=2.0)
    with Coordinator(rules) as coordinator:
        first, second = form(coordinator, 2)
        frozen = time.monotonic()
        second.signal(signal.SIGSTOP)
        notice = first.notice()
        assert "silent for" in notice["reason"]
        assert 1.5 < notice["time"] - frozen < 6.0
        assert first.do("meet", committed=0, state="working")["members"] == [0]
        second.signal(signal.SIGCONT)
        assert second.do("meet", committed=0, state="working")["error"] == "Fenced"


def test_a_worker_that_computes_in_python_is_not_taken_for_dead() -> None:
    rules = JobRules(workers=2, heartbeat_seconds=0.2, lost_after_seconds=2.0)
    with Coordinator(rules) as coordinator:
        first, second = form(coordinator, 2)
        first.tell("compute", seconds=4.0)
        second.do("compute", seconds=4.0)
        first.answer()
        with pytest.raises(queue.Empty):
            coordinator.event(MemberLost, timeout=0.1)


def test_a_second_process_for_a_place_is_refused() -> None:
    with Coordinator(JobRules(workers=2)) as coordinator:
        form(coordinator, 2)
        twin = coordinator.start(0)
        answer = twin.do("join")
        assert answer["error"] == "ProtocolError"
        assert answer["message"] == "the coordinator refused worker 0: worker 0, incarnation 1, is here already"


def test_a_process_with_the_wrong_secret_is_refused() -> None:
    with Coordinator(JobRules(workers=1)) as coordinator:
        stranger = coordinator.start(0, secret="guess")
        assert stranger.do("join")["error"] == "AuthenticationError"
