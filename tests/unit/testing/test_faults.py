"""A plan of faults travels in the environment and strikes one process at one point."""

from __future__ import annotations

import signal

import pytest

from paceline.errors import ConfigError
from paceline.observability.events import GroupFormed, PhaseStarted
from paceline.testing import faults
from paceline.testing.faults import PHASES, Executioner, FaultPlan, Kill


def test_a_plan_travels_in_the_environment() -> None:
    plan = FaultPlan((Kill(7, "vote", 1), Kill(9, "work", 0, incarnation=2, delay_microseconds=5)))
    environment = plan.environment({"PACELINE_PLUGINS": "mine"})
    assert environment["PACELINE_PLUGINS"] == "mine,paceline.testing.faults"
    assert FaultPlan.from_json(environment["PACELINE_FAULTS"]) == plan
    assert plan.environment(environment) == environment
    assert plan.of_process(0, 2) == (plan.kills[1],)
    assert plan.of_process(0, 1) == ()


def test_a_random_plan_is_a_pure_function_of_its_seed() -> None:
    plans = [FaultPlan.random(seed, workers=3, rounds=10) for seed in range(200)]
    assert plans == [FaultPlan.random(seed, workers=3, rounds=10) for seed in range(200)]
    kills = [plan.kills[0] for plan in plans]
    assert {kill.phase for kill in kills} == set(PHASES)
    assert {kill.worker for kill in kills} == {0, 1, 2}
    assert {kill.round for kill in kills} == set(range(10))


@pytest.mark.parametrize("text", ["", "{", '[{"round": 1}]', '[{"round": 1, "phase": "lunch", "worker": 0}]', "7"])
def test_a_plan_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="PACELINE_FAULTS is not a list of kills"):
        FaultPlan.from_json(text)


def test_the_process_is_killed_at_the_planned_point_only(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[int] = []
    monkeypatch.setattr(faults.os, "kill", lambda _, number: struck.append(number))
    subscriber = Executioner((Kill(2, "talk", 0),))
    for event in (PhaseStarted(1, "talk"), PhaseStarted(2, "work"), GroupFormed(1, (0,), (), "")):
        subscriber(event)
    assert struck == []
    subscriber(PhaseStarted(2, "talk"))
    assert struck == [signal.SIGKILL]
