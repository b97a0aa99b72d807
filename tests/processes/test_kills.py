"""Fifty random kills of real workers in training: nothing committed is lost, and nobody waits for the dead."""

from __future__ import annotations

import statistics

import pytest

from killing import Sweep, Trial, round_seconds

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]

MOST_SECONDS = 1.0


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    return Sweep(tmp_path_factory.mktemp("kills")).run()


def test_fifty_kills_are_planned_for_every_phase_and_every_worker(trials: list[Trial]) -> None:
    kills = [kill for trial in trials for kill in trial.plan.kills]
    assert len(kills) == 50
    assert {kill.phase for kill in kills} == {"work", "talk", "vote", "change"}
    assert {kill.worker for kill in kills} == {0, 1, 2}
    assert max(kill.incarnation for kill in kills) > 2, "also those that came back are killed"


@pytest.mark.parametrize("number", range(6))
def test_a_job_with_kills_is_complete_and_gives_the_answer_of_an_undisturbed_one(
    trials: list[Trial], number: int
) -> None:
    trials[number].check()


def test_survivors_commit_within_a_second_and_the_time_of_a_round(trials: list[Trial]) -> None:
    seconds = [recovery.seconds for trial in trials for recovery in trial.recoveries()]
    assert len(seconds) == 50
    assert statistics.median(seconds) < MOST_SECONDS + statistics.median(round_seconds(trial.run) for trial in trials)
