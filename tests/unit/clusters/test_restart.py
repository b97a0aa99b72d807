"""One kill is an accident; a row of quick deaths is not."""

from __future__ import annotations

import signal

from paceline.clusters.exits import Exit, exit_of
from paceline.clusters.restart import GiveUp, Restart, RestartRules, decide

KILLED = Exit(2, 1, None, "SIGKILL")


def test_the_first_death_costs_no_waiting() -> None:
    assert decide(KILLED, (0.1,), RestartRules()) == Restart(0.0)


def test_quick_deaths_in_a_row_wait_twice_as_long_each_time() -> None:
    delays = [decide(KILLED, (1.0,) * deaths, RestartRules(max_restarts=100)) for deaths in range(1, 11)]
    assert delays == [Restart(seconds) for seconds in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0)]
    assert decide(KILLED, (1.0,) * 5000, RestartRules(max_restarts=10_000)) == Restart(30.0)


def test_a_long_life_ends_the_row() -> None:
    assert decide(KILLED, (1.0, 1.0, 1.0, 3600.0), RestartRules()) == Restart(0.0)
    assert decide(KILLED, (1.0, 3600.0, 1.0), RestartRules()) == Restart(0.0)
    assert decide(KILLED, (1.0, 3600.0, 1.0, 1.0), RestartRules()) == Restart(0.5)


def test_a_worker_is_given_up_after_its_last_restart() -> None:
    rules = RestartRules(max_restarts=2)
    assert isinstance(decide(KILLED, (9.0, 9.0), rules), Restart)
    assert decide(KILLED, (9.0, 9.0, 9.0), rules) == GiveUp(
        "worker 2 was killed (SIGKILL); it was started again 2 times before, which is the limit (--max-restarts)"
    )
    assert decide(KILLED, (9.0,), RestartRules(max_restarts=0)) == GiveUp(
        "worker 2 was killed (SIGKILL); restarts are turned off (--max-restarts 0)"
    )


def test_ends_are_described_in_words() -> None:
    assert exit_of(1, 1, 0).is_good
    assert exit_of(1, 1, 3).description == "exited with 3"
    assert exit_of(1, 1, -signal.SIGSEGV) == Exit(1, 1, None, "SIGSEGV")
    assert exit_of(1, 1, -9).description == "was killed (SIGKILL)"
    assert exit_of(1, 1, -40).description == "was killed (signal 40)"
    assert exit_of(1, 1, -9, out_of_memory=True).description == "was killed by the kernel: out of memory"
    assert exit_of(1, 1, -9, out_of_memory=True).told_signal == "SIGKILL, out of memory"
    assert exit_of(1, 1, -15, out_of_memory=True).told_signal == "SIGTERM"
